"""The command: arms at equal budget, what has ended is kept, a strategy from a file of one's own."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from search import compare
from search.comparisons.curves import Searched
from tests.evaluators.scheduler.fake_host import FakeHost

LANDSCAPE = ["problem=landscape", "proposer=landscape", "branch=2", "budget.evaluations=24"]
TWO = ["strategies=[idea_branching]", 'arms.wide=["strategy=idea_branching","strategy.keep=8"]']


def call(folder: Path, *arguments: str) -> int:
    return compare.main([*LANDSCAPE, *arguments, f"hydra.run.dir={folder}"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["strategies=[idea_branching]"], "a comparison needs two strategies"),
        (["strategies=[idea_branching,idea_branching]"], "two arms have the same name"),
        ([*TWO, "budget.evaluations=null"], "a comparison needs a budget: budget.evaluations=…"),
        ([*TWO, "seeds=0"], "seeds is 0"),
        (["resume=nowhere"], "no comparison's folder"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert call(tmp_path / "compared", *arguments) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_searches_are_kept_and_not_done_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "compared"
    assert call(folder, *TWO, "seeds=3") == 0
    said = capsys.readouterr().out
    assert "idea_branching and wide do not differ" in said or "is better than" in said
    lines = (folder / "searches.jsonl").read_text().splitlines()
    searches = [Searched.from_json(line) for line in lines]
    assert {(each.arm, each.seed) for each in searches} == {
        (arm, seed) for arm in ("idea_branching", "wide") for seed in range(3)
    }
    assert {each.points[-1].evaluations for each in searches} == {24}
    body = json.loads((folder / "comparison.json").read_text())
    assert (body["unit"], body["searches"], len(body["differences"])) == ("evaluations", 6, 1)
    rows = list(csv.DictReader((folder / "curves.csv").open()))
    assert {row["arm"] for row in rows} == {"idea_branching", "wide"}
    # half a line of a process that was killed, and one search less
    (folder / "searches.jsonl").write_text("\n".join(lines[:5]) + "\n" + lines[5][:40] + "\n")
    assert compare.main([f"resume={folder}"]) == 0
    again = (folder / "searches.jsonl").read_text().splitlines()
    assert again[:5] == lines[:5]
    assert len(again) == 7
    assert json.loads((folder / "comparison.json").read_text())["searches"] == 6


@pytest.mark.slow
def test_a_strategy_of_ones_own_is_a_file_and_a_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_strategies.py").write_text(
        "from search.tree import Expansion\n"
        "class Plain:\n"
        "    ideas, synchronous = 2, False\n"
        "    def ask(self, view, rng):\n"
        "        best = view.tree.best(1)\n"
        "        return Expansion(seed=best[0].seed if best else None, ideas=1, variants=1)\n"
    )
    (tmp_path / "configs/strategy").mkdir(parents=True)
    (tmp_path / "configs/strategy/plain.yaml").write_text("_target_: my_strategies.Plain\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    arguments = ["strategies=[idea_branching,plain]", "seeds=2", "--config-dir", str(tmp_path / "configs")]
    assert call(tmp_path / "compared", *arguments) == 0, capsys.readouterr().err
    assert "plain" in capsys.readouterr().out


@pytest.mark.slow
def test_searches_on_kernels_share_a_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts: list[FakeHost] = []

    def make(**_: Any) -> FakeHost:
        hosts.append(FakeHost())
        return hosts[-1]

    monkeypatch.setattr("evaluators.scheduler.local_host.LocalHost", make)
    call = [
        "problem=level1/softmax",
        "problem.sizes.batch=4",
        "pool=local",
        "device=cpu",
        "branch=1",
        "ideas=2",
    ]
    folder = tmp_path / "compared"
    arms = ["strategies=[idea_branching,best_of_n]", "rounds=2", "seeds=2", f"hydra.run.dir={folder}"]
    assert compare.main([*call, *arms]) == 0
    assert [host.closed for host in hosts] == [1]
    for arm in ("idea_branching", "best_of_n"):
        for seed in (0, 1):
            assert (folder / f"level1/softmax/{arm}/seed_{seed}/summary.json").exists()
    body = json.loads((folder / "comparison.json").read_text())
    assert (body["searches"], body["problems"]) == (4, ["level1/softmax"])
    asked = [json.loads(line)["asked"] for line in (folder / "verdicts.jsonl").read_text().splitlines()]
    assert asked
    assert len(asked) == len({tuple(each) for each in asked})
    # a search that was killed goes on where its journal ends
    results = folder / "searches.jsonl"
    results.write_text("\n".join(results.read_text().splitlines()[:3]) + "\n")
    before = {path: path.read_text() for path in folder.rglob("journal.jsonl")}
    assert compare.main([f"resume={folder}"]) == 0
    assert len(results.read_text().splitlines()) == 4
    assert all(path.read_text().startswith(text) for path, text in before.items())
