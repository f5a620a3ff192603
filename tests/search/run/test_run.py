"""The command from the outside: errors are one line, a run leaves its files, and a killed run resumes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from search.run import __main__ as run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SMALL = [
    "problem=level1/softmax",
    "problem.sizes.batch=8",
    "problem.sizes.features=512",
    "device=cpu",
    "pool=local",
    "wandb=off",
    "library.use=false",
    "problem.libraries=any",
    "evaluator.compile_mode=",
    "evaluator.max_calls=8",
    "evaluator.threads=1",
    "evaluator.plan.max_s=0.1",
    "evaluator.plan.most_calls=3",
    "evaluator.thorough_plan.max_s=0.1",
    "evaluator.thorough_plan.most_calls=3",
    "comparisons=1",
]
"""A search whose evaluations take about a second each; its result does not matter. One thread, because two
that wait for each other use a core each."""


def call(tmp_path: Path, *arguments: str) -> int:
    return run.main([*arguments, f"out={tmp_path / 'outputs'}"])


def journal(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "journal.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def only_folder(tmp_path: Path) -> Path:
    (found,) = (tmp_path / "outputs").rglob("journal.jsonl")
    return found.parent


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["problem=level1/conv2"], "level1/conv2d"),
        (["problem=conv2d"], "level1/conv2d"),
        ([], "problem is not set"),
        (["problem=level1/conv2d", "branchs=8"], "did you mean branch?"),
        (["problem=level1/conv2d", "rounds=0"], "rounds is 0"),
        (["problem=level1/conv2d", "rounds=many"], "rounds is many"),
        (["problem=level1/conv2d", "branch=-1"], "branch is -1"),
        (["problem=level1/conv2d", "device=gpu"], "cuda"),
        (["problem=level1/conv2d", "ray.address=auto", "profile=static"], "choose pool=folder"),
        (["problem=level1/conv2d", "repairs_in=never"], "same_round, next_round"),
        (
            ["problem=level1/conv2d", "device=cpu", "repairs_in=next_round", "strategy=puct"],
            "repairs_in=next_round needs rounds",
        ),
        (["problem=level1/conv2d", "history=some"], "all, best, summary, none"),
        (["problem=level1/conv2d", "wandb=maybe"], "online"),
        (["problem=level1/conv2d", "budget.seconds=-5", "device=cpu"], "budget.seconds is -5"),
        (["problem=level1/conv2d", "problem.sizes.bach=2", "device=cpu"], "did you mean batch?"),
        (["problem=level1/conv2d", "evaluator.timeout_s=0", "device=cpu"], "evaluator.timeout_s is 0"),
        (["problem=level1/conv2d", "llm=[openai,gogle]"], "did you mean google?"),
        (["problem=level1/conv2d", "llm.openai.modl=x"], "did you mean llm.openai.model?"),
        (["problem=level1/conv2d", "proposer=llm", "llm.openai.price.input=-1"], "price.input is -1"),
        (["problem=level1/conv2d", "proposer=llm", "llm.openai.limits.tries=0"], "limits.tries is 0"),
        (["problem=level1/conv2d", "proposer=llm", "proposer.languages=rust"], "rust"),
        (
            ["problem=level1/conv2d", "proposer=llm", "llm.openai.base_url=localhost:8000/v1"],
            "base_url is 'localhost:8000/v1'; it must be the URL of a server, such as http://localhost:8000/v1",
        ),
        (["problem=level1/conv2d", "proposer=llm", "proposer.prompts=nowhere"], "nowhere"),
        (
            ["problem=level1/conv2d", "proposer=llm", "budget.dollars=1", "llm.openai.price.output=null"],
            "llm.openai.price.output",
        ),
        (
            ["problem=level1/conv2d", "proposer=llm", "budget.dollars=0.1"],
            "budget.dollars=0.1: one answer of openai may cost $0.32; raise the limit, or lower llm.",
        ),
        (
            ["problem=level1/conv2d", "proposer=llm", "budget.tokens=32000"],
            "budget.tokens=32000: one answer of openai may have 32000",
        ),
        (["problem=level1/conv2d", "proposer=llm", "proposer.patience_s=-1"], "proposer.patience_s is -1"),
        (["proposer=replay"], "replay.run"),
        (["proposer=replay", "replay.run=nowhere"], "not a run folder"),
        (["problem=level1/conv2d", "repairs=-1", "device=cpu", "pool=local"], "repairs is -1"),
        (["problem=level1/conv2d", "comparisons=-1", "device=cpu", "pool=local"], "comparisons is -1"),
        (["problem=file"], "problem.path is not set"),
        (["problem=file", "problem.path=nowhere.py", "device=cpu"], "nowhere.py"),
        (["resume=nowhere"], "not a run folder"),
        (["rounds"], "key=value"),
    ],
)
def test_bad_input_gets_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert call(tmp_path, *arguments) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert "Traceback" not in printed.err + printed.out
    assert not (tmp_path / "outputs").exists()


def test_cuda_without_a_gpu_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert call(tmp_path, "problem=level1/conv2d", "device=cuda") == 2
    assert "device=cpu" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("proposer", "source", "says"),
    [
        ("playbook", "def get_inputs(): return []\ndef get_init_inputs(): return []\n", "no Model"),
        ("playbook", "class Model(\n", "line 1"),
        (
            "mailbox",
            "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
            "        raise ValueError('too cold')\n"
            "def get_inputs(): return [torch.randn(2)]\ndef get_init_inputs(): return []\n",
            "too cold",
        ),
        (
            "playbook",
            "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
            "        return x.cumsum(0)\n"
            "def get_inputs(): return [torch.randn(2)]\ndef get_init_inputs(): return []\n",
            "the playbook does not know what this computes",
        ),
    ],
)
def test_an_invalid_reference_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], proposer: str, source: str, says: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(source)
    arguments = ["problem=file", f"problem.path={file}", f"proposer={proposer}", "device=cpu", "pool=local"]
    assert call(tmp_path, *arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "outputs").exists()


# --- whole searches -------------------------------------------------------------------------------


@pytest.mark.core
def test_a_search_leaves_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path, *SMALL, "rounds=2", "ideas=1", "branch=1") == 0
    folder = only_folder(tmp_path)
    events = Counter(line["event"] for line in journal(folder))
    assert events["run_started"] == events["run_finished"] == 1
    assert events["round_closed"] == 2
    assert events["variant_written"] == events["variant_evaluated"] >= 2
    summary = json.loads((folder / "summary.json").read_text())
    assert list(summary) == [
        "problem", "device", "rounds", "evaluations", "statuses", "baselines_ms", "best", "cost", "time",
    ]  # fmt: skip
    assert summary["problem"] == "level1/softmax"
    assert summary["best"]["speedup"] > 0
    assert len(list((folder / "variants").glob("*.py"))) == events["variant_written"]
    assert (folder / ".hydra" / "config.yaml").exists()
    assert "best" in capsys.readouterr().out
    standalone = "import runpy, sys; runpy.run_path(sys.argv[1])['ModelNew']"
    subprocess.run([sys.executable, "-c", standalone, str(folder / "best.py")], check=True)


def test_the_winner_seeds_the_next_search(tmp_path: Path) -> None:
    first = [*SMALL, "library.use=true", "library.min_speedup=0", "rounds=1", "ideas=1", "branch=1"]
    assert call(tmp_path, *first) == 0
    winner = json.loads((only_folder(tmp_path) / "summary.json").read_text())["best"]["variant"]
    assert call(tmp_path, *first) == 0
    folders = sorted(path.parent for path in (tmp_path / "outputs").rglob("journal.jsonl"))
    started, proposed = journal(folders[-1])[:2]
    known, *shipped = started["entries"]
    assert proposed["idea"]["parent"] == known["id"] != winner
    assert {each["id"].partition("/")[2] for each in shipped} <= {"cpp"}


def start(tmp_path: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "search.run", *arguments, f"out={tmp_path / 'outputs'}"],
        cwd=ROOT,
        stdout=(tmp_path / "said").open("wb"),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def said(tmp_path: Path) -> str:
    return (tmp_path / "said").read_text()


def wait_for_verdicts(tmp_path: Path, n: int, timeout_s: float = 300) -> Path:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for path in (tmp_path / "outputs").rglob("journal.jsonl"):
            if path.read_text().count('"variant_evaluated"') >= n:
                return path.parent
        time.sleep(0.05)
    raise AssertionError(f"{n} verdicts did not come in {timeout_s} s")


@pytest.mark.parametrize("pool", [pytest.param("local", marks=pytest.mark.exhaustive), "ray"])
def test_a_killed_run_resumes_where_it_was(tmp_path: Path, pool: str) -> None:
    size = ["rounds=1", "ideas=2", "branch=2", f"pool={pool}"]
    process = start(tmp_path, *SMALL, *size)
    folder = wait_for_verdicts(tmp_path, 1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = journal(folder)
    assert not any(line["event"] == "run_finished" for line in before)
    assert run.main([f"resume={folder}"]) == 0
    after = journal(folder)
    assert after[: len(before)] == before
    written = [line["id"] for line in after if line["event"] == "variant_written"]
    judged = [line["id"] for line in after if line["event"] == "variant_evaluated"]
    assert sorted(written) == sorted(judged), "lost, or evaluated twice"
    assert len(set(judged)) == len(judged)
    assert [line["event"] for line in after].count("round_closed") == 1
    assert (folder / "summary.json").exists()


def test_an_interrupt_ends_the_run_cleanly(tmp_path: Path) -> None:
    process = start(tmp_path, *SMALL, "rounds=9", "ideas=2", "branch=2")
    folder = wait_for_verdicts(tmp_path, 2)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(300) == 130
    assert re.search(
        r"(finishing \d+ measurements?|closing the run); press Ctrl-C again to stop immediately",
        said(tmp_path),
    )
    last = journal(folder)[-1]
    assert last["event"] == "run_finished"
    assert last["reason"] == "interrupted"
    assert json.loads((folder / "summary.json").read_text())["best"] is not None
