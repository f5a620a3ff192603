"""The comparison with peers, with stubs of their clones and our seeds, without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import peers, seeds
from benchmarks.peers import FILES, PARTS, PEERS, Peer, main
from benchmarks.seeds import Case
from evaluators.base.usage_error import UsageError
from evaluators.build.builder import Build
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from tests.search.fakes import timing

KERNEL_FN = """
import torch

def kernel_fn(x):
    return torch.softmax(x, dim=1)
"""
MODEL = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        return {}
"""
QUICK = (
    "evaluator.threads=1",
    "evaluator.max_calls=8",
    "evaluator.plan.max_s=0.2",
    "evaluator.plan.precision=0.2",
)
OPTIONS = ("problem.libraries=any", "problem.sizes.batch=1024", "problem.sizes.features=512")


class Host:
    """Stub of LocalHost and Pool that builds and measures nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        self.asked: list[str] = []

    async def describe(self, _: Problem) -> dict[str, str]:
        return {"device": "none"}

    async def build(self, *_: object) -> Build:
        return Build(seconds=0.0)

    async def evaluate(self, _: Problem, kernel: Kernel) -> Evaluation:
        assert kernel.id not in self.asked, "once for several rows"
        self.asked.append(kernel.id)
        if "2 * x" in kernel.source:
            return Evaluation(status=Status.INCORRECT)
        kernel_ms = 2.0 if "range(20)" in kernel.source else 1.0
        return Evaluation(status=Status.CORRECT, timing=timing(kernel_ms=kernel_ms))

    def close(self) -> None:
        pass


@pytest.fixture(params=["played", pytest.param("real", marks=pytest.mark.exhaustive)])
def evaluator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "played":
        monkeypatch.setattr(peers, "LocalHost", Host)
        monkeypatch.setattr(peers, "Pool", Host)
    return str(request.param)


@pytest.fixture
def clones(tmp_path: Path) -> list[str]:
    """AutoKernel's softmax is correct; of two published ones, one is correct and one wrong."""
    for name, text in {
        "autokernel/kernels/softmax.py": KERNEL_FN,
        "published/Right/src.py": MODEL.format("x.softmax(dim=1)"),
        "published/Wrong/src.py": MODEL.format("2 * x.softmax(dim=1)"),
    }.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    return [f"{clone}={tmp_path / clone}" for clone in ("autokernel", "published")]


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds for one case, a slow and a fast one."""
    texts = {
        "softmax/slow": MODEL.format("[torch.softmax(x, dim=1) for _ in range(20)][0]"),
        "softmax/fast": MODEL.format("torch.softmax(x, dim=1)"),
    }
    for seed, text in texts.items():
        (tmp_path / "seeds" / seed).mkdir(parents=True)
        (tmp_path / "seeds" / seed / "kernel.py").write_text(text)
    monkeypatch.setattr(seeds, "SEEDS", tmp_path / "seeds")
    cases = [Case(seed=seed, problem="level1/softmax", options=OPTIONS, device="cpu") for seed in texts]
    monkeypatch.setattr(peers, "CASES", cases)
    monkeypatch.setattr(peers, "SETTINGS", (*peers.SETTINGS, *QUICK))
    monkeypatch.setattr(
        peers,
        "PEERS",
        [
            Peer("autokernel", "softmax", "level1/softmax", OPTIONS, "plain"),
            Peer("published", "Right", "level1/softmax", OPTIONS, note="as it is"),
            Peer("published", "Wrong", "level1/softmax", OPTIONS),
        ],
    )


@pytest.mark.slow
@pytest.mark.usefixtures("ours")
def test_ours_is_compared_with_theirs(
    evaluator: str, clones: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "peers.json"
    assert main([*clones, "device=cpu", f"out={out}"]) == 0
    written = json.loads(out.read_text())
    right, wrong = (
        [row for name, row in written["rows"].items() if ("Wrong" in name) is is_wrong]
        for is_wrong in (False, True)
    )
    assert [row["status"] for row in right] == ["correct", "correct"]
    assert [row["status"] for row in wrong] == ["incorrect"]
    # On a busy machine, 0.2 s of timing cannot always find the faster of our seeds.
    ours = {"played": ["softmax/fast"], "real": ["softmax/fast", "softmax/slow"]}[evaluator]
    assert all(row["seed"] in ours and row["done"] for row in [*right, *wrong]), written
    assert wrong[0]["outside"]["error"] == pytest.approx(1.0)
    assert all(row["ours_ms"] > 0 and row["theirs_ms"] > 0 for row in [*right, *wrong])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 3
    assert "Wrong; softmax/fast; wrong: incorrect, error 1.0e+00, times by events" in lines[-1]
    assert sum(line.endswith("; as it is") for line in lines) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("ours")
def test_the_time_limit_ends_the_run(clones: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*clones, "device=cpu", "only=Right,Wrong", "limit_s=0.5"]) == 1
    assert capsys.readouterr().out.count("not measured in time: ") == 2


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize(
    "call", [["speed=1"], ["only=softmax"], ["published=x", "only=nobody"], ["published=/nowhere"]]
)
def test_a_wrong_call_is_refused(call: list[str]) -> None:
    with pytest.raises(UsageError):
        main(call)


@pytest.mark.slow
def test_the_table_names_existing_cases_and_parts() -> None:
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    for peer in PEERS:
        assert peer.cases("cuda"), peer.name
        assert FILES[peer.clone].format(peer.kernel).endswith(".py")
        named = [f"before_{peer.clone}", peer.after, peer.reference]
        assert all((PARTS / f"{name}.py").is_file() for name in named if name), peer.name
        assert peer.to_problem("cuda").libraries == "any"


def test_their_source_stays_unchanged(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    theirs = "import triton\n\n\ndef kernel_fn(x):\n    return x"
    (tmp_path / "kernels" / "softmax.py").write_text(theirs)
    kernel = PEERS[0].to_kernel(tmp_path)
    assert theirs in kernel.source
    assert kernel.source.index(theirs) < kernel.source.index("class ModelNew")
    assert kernel.language == "triton"
