"""Evaluates the kernels of the catalogue one after another, with one worker per device.

A kernel must not change the verdict on the next. They are ordered by problem, because opening a problem takes
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evaluators.build.build_cache import BuildCache
from evaluators.build.builder import build
from evaluators.device.settings import Settings
from evaluators.device.worker import Worker
from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Kernel
from evaluators.records.timing import Plan
from tests.evaluators.catalogue import NO_GAIN, ROOT, Fixture, fixtures, read
from tests.evaluators.catalogue.problems import CASES, problem
from tests.evaluators.catalogue.table import PAGE, page

FIXTURES = fixtures()
SETTINGS = {
    "cpu": Settings(
        timeout_s=60.0,
        max_calls=32,
        threads=1,
        compile_mode="",
        plan=Plan(block_ms=8.0, precision=0.1, max_s=0.5),
    ),
    "cuda": Settings(timeout_s=60.0, compile_mode="", plan=Plan(block_ms=10.0, precision=0.05, max_s=1.0)),
}
TRIES = 4
"""Of a kernel whose own share is unknown, because too few samples were taken, and of a cheat that seems to
gain: on two busy cores, one that is no faster came to 1.71x once."""
LANGUAGES = {"cpu": "cpp", "cuda": "triton"}


def _parameters() -> list[object]:
    pairs = [(device, each) for each in FIXTURES for device in each.devices]
    pairs.sort(key=lambda pair: (pair[0], pair[1].problem))
    marks = {"cpu": (), "cuda": (pytest.mark.gpu,)}
    return [
        pytest.param(device, each, id=f"{each.id}-{device}", marks=marks[device]) for device, each in pairs
    ]


@pytest.fixture(scope="module")
def worker_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Worker]]:
    workers: dict[str, Worker] = {}

    def start(device: str) -> Worker:
        if device not in workers:
            root = tmp_path_factory.mktemp(device)
            workers[device] = Worker(root=root, settings=SETTINGS[device])
        return workers[device]

    yield start
    for each in workers.values():
        each.close()


def judge(worker: Worker, fixture: Fixture, device: str, cache: BuildCache) -> Evaluation:
    asked = problem(fixture.problem, device)
    kernel = Kernel(source=fixture.source, language=LANGUAGES[device])
    architecture = worker.open(asked).get("architecture", "")
    built = build(asked, kernel, root=worker._root, architecture=architecture, timeout_s=180.0, cache=cache)
    if built.status is not None:
        return Evaluation(status=built.status, log=built.log)
    return worker.measure(asked, kernel, built.archive)


@pytest.mark.slow
@pytest.mark.parametrize(("device", "fixture"), _parameters())
def test_the_verdict(
    worker_on: Callable[[str], Worker], build_cache: BuildCache, device: str, fixture: Fixture
) -> None:
    if device == "cuda":
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA GPU")
    for _ in range(TRIES):
        found = judge(worker_on(device), fixture, device, build_cache)
        complaint = fixture.complaint(found)
        unknown = fixture.rule == "library" and found.own_share is None
        seems_to_gain = NO_GAIN in fixture.verdicts and found.status is Status.CORRECT
        if not (complaint and (unknown or seems_to_gain)):
            break  # otherwise a busy machine may be the reason
    assert not complaint, complaint


def test_the_catalogue_is_large_and_whole() -> None:
    cheats = [each for each in FIXTURES if each.group not in ("honest", "not_stopped")]
    assert len(cheats) >= 80
    assert len(FIXTURES) == len(list(ROOT.glob("*/*.py"))), "a folder that is not in GROUPS"
    assert len({each.name for each in FIXTURES}) == len(FIXTURES)
    for each in FIXTURES:
        assert each.problem in CASES, each.id
        if each.group in ("honest", "not_stopped"):
            assert each.verdicts == ("correct",), each.id
        else:
            assert "correct" not in each.verdicts, each.id
        if each.group == "no_kernel":
            assert CASES[each.problem].libraries == "no_library", each.id


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.evaluators.catalogue.table"


FILE = '''"""Says what
it tries."""

# problem: tanhs
# device: any
# verdict: rejected|no_gain
# rule: forged message
# defence: the clock

import torch  # device: cpu
'''


def test_the_headers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "timing" / "lies.py"
    path.parent.mkdir()
    path.write_text(FILE)
    found = read(path)
    assert (found.id, found.says, found.source) == ("timing/lies", "Says what it tries.", FILE)
    assert (found.devices, found.verdicts) == (("cpu", "cuda"), ("rejected", "no_gain"))
    assert (found.problem, found.rule, found.defence) == ("tanhs", "forged message", "the clock")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# problem: tanhs\n", ""),
        ("# defence: the clock\n", ""),
        ("# verdict: rejected|no_gain", "# verdict: refused"),
        ("# device: any", "# device: tpu"),
        ("# rule:", "# rules:"),
        ("Says what\nit tries.", ""),
        ("import torch", "import torch ("),
    ],
)
def test_a_bad_header_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "lies.py"
    assert old in FILE
    path.write_text(FILE.replace(old, new))
    with pytest.raises(ValueError, match=r"lies\.py"):
        read(path)


@pytest.mark.slow
def test_complaints() -> None:
    fixture = Fixture(
        group="timing",
        name="lies",
        source="",
        says="",
        problem="tanhs",
        devices=("cpu",),
        verdicts=("rejected", "no_gain"),
        rule="forged message",
        defence="",
    )

    def correct(low: float) -> Evaluation:
        timing = Timing(kernel_ms=1.0, eager_ms=1.0, speedup=2.0, speedup_low=low, speedup_high=3.0)
        return Evaluation(status=Status.CORRECT, timing=timing)

    assert not fixture.complaint(Evaluation(status=Status.REJECTED, rule="forged message"))
    assert not fixture.complaint(correct(1.0))
    assert "uneven calls" in fixture.complaint(Evaluation(status=Status.REJECTED, rule="uneven calls"))
    assert "correct" in fixture.complaint(correct(1.5))
    assert "incorrect" in fixture.complaint(Evaluation(status=Status.INCORRECT))
