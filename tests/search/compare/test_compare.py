"""The command: arms at equal budget, resuming, and a user's own strategy."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.base.jsonl_store import append_line, only_writer
from search.compare import __main__ as compare
from search.compare.comparison_page import page_data
from search.compare.curves import Searched
from tests.evaluators.scheduler.fake_host import FakeHost
from tests.search.interrupted import interrupted
from tests.search.observers.wandb_files import away_from_home, offline_runs

LANDSCAPE = ["problem=landscape", "proposer=landscape", "branch=2", "budget.evaluations=24"]
TWO = ["strategies=[idea_branching]", 'arms.wide=["strategy=idea_branching","strategy.keep=8"]']


KERNELS = [
    *("problem=level1/softmax", "problem.sizes.batch=4", "pool=local", "device=cpu", "branch=1", "ideas=2"),
    *("strategies=[idea_branching,best_of_n]", "rounds=2"),
]


def call(folder: Path, *arguments: str) -> int:
    return compare.main([*LANDSCAPE, *arguments, f"hydra.run.dir={folder}"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["strategies=[idea_branching]"], "a comparison needs at least two strategies"),
        (["strategies=[idea_branching,idea_branching]"], "two arms have the same name"),
        ([*TWO, "budget.evaluations=null"], "a comparison needs a budget: set budget.evaluations=…"),
        ([*TWO, "seeds=0"], "seeds is 0"),
        ([*TWO, "wandb=offline"], "searches without a device are not logged to W&B"),
        (["resume=nowhere"], "no comparison in this folder"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert call(tmp_path / "compared", *arguments) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.core
@pytest.mark.slow
def test_ended_searches_are_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "compared"
    assert call(folder, *TWO, "seeds=3") == 0
    said = capsys.readouterr().out
    assert "idea_branching and wide do not differ" in said or "finds significantly faster kernels" in said
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
    # half a line of a process that was killed
    (folder / "searches.jsonl").write_text("\n".join(lines[:5]) + "\n" + lines[5][:40])
    assert compare.main([f"resume={folder}"]) == 0
    again = (folder / "searches.jsonl").read_text().splitlines()
    assert again[:5] == lines[:5]
    assert len(again) == 7
    assert json.loads((folder / "comparison.json").read_text())["searches"] == 6


@pytest.mark.slow
def test_two_comparisons_do_not_share_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "compared"
    with only_writer(folder / "searches.jsonl", "comparison"):
        assert call(folder, *TWO, "seeds=1") == 2
    assert "another process is running this comparison" in capsys.readouterr().err
    assert not (folder / "comparison.json").exists()
    assert call(folder, *TWO, "seeds=1") == 0
    before = (folder / "searches.jsonl").read_text()
    assert call(folder, *TWO, "seeds=2") == 2
    assert "already has a comparison; continue it with resume=" in capsys.readouterr().err
    assert (folder / "searches.jsonl").read_text() == before
    assert compare.main([f"resume={folder}", "seeds=2"]) == 0
    assert (folder / "searches.jsonl").read_text().startswith(before)


@pytest.mark.slow
def test_a_search_that_failed_is_named_and_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "compared"
    assert call(folder, *TWO, "seeds=1") == 0
    found = [Searched.from_json(line) for line in (folder / "searches.jsonl").read_text().splitlines()]
    why = "error: the search: strategy Mine (mine): ValueError: x"
    append_line(folder / "searches.jsonl", replace(found[0], reason=why).to_json())
    assert compare.main([f"resume={folder}"]) == 0
    again = [Searched.from_json(line) for line in (folder / "searches.jsonl").read_text().splitlines()]
    assert [each.reason for each in again] == ["evaluations", "evaluations", why, "evaluations"]
    assert again[3] == found[0]


@pytest.mark.slow
def test_a_user_strategy_is_a_file_and_a_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_strategies.py").write_text(
        "from search.records.tree import Expansion\n"
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
    folder = tmp_path / "compared"
    assert compare.main([*KERNELS, "seeds=2", "seeds_at_once=2", f"hydra.run.dir={folder}"]) == 0
    assert not list(folder.rglob("wandb")), "it is off unless it is asked for"
    assert [host.closed for host in hosts] == [1]
    for arm in ("idea_branching", "best_of_n"):
        for seed in (0, 1):
            assert (folder / f"level1/softmax/{arm}/seed_{seed}/summary.json").exists()
    body = json.loads((folder / "comparison.json").read_text())
    assert (body["searches"], body["problems"]) == (4, ["level1/softmax"])
    asked = [json.loads(line)["key"] for line in (folder / "verdicts.jsonl").read_text().splitlines()]
    assert asked
    assert len(asked) == len({*asked})
    # a killed search resumes where its journal ends
    results = folder / "searches.jsonl"
    results.write_text("\n".join(results.read_text().splitlines()[:3]) + "\n")
    before = {path: path.read_text() for path in folder.rglob("journal.jsonl")}
    assert compare.main([f"resume={folder}"]) == 0
    assert len(results.read_text().splitlines()) == 4
    assert all(path.read_text().startswith(text) for path, text in before.items())


@pytest.mark.slow
def test_searches_are_one_group_on_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluators.scheduler.local_host.LocalHost", lambda **_: FakeHost())
    away_from_home(monkeypatch, tmp_path)
    folder = tmp_path / "compared"
    arguments = ["seeds=1", "wandb=offline", "wandb.tags=[ours]", f"hydra.run.dir={folder}"]
    assert compare.main([*KERNELS, *arguments]) == 0
    for arm in ("idea_branching", "best_of_n"):
        (each,) = offline_runs(folder / "level1/softmax" / arm / "seed_0")
        assert (each.run.run_group, each.run.job_type) == ("compared", arm)
        assert list(each.run.tags) == ["ours", arm, "level1/softmax"]
        assert (each.config["run"]["problem"], each.config["run"]["seed"]) == ("level1/softmax", 0)
        assert len(each.table("ideas")) == 4


@pytest.mark.slow
def test_an_interrupt_leaves_a_report(tmp_path: Path) -> None:
    folder = tmp_path / "compared"
    arguments = [*LANDSCAPE, *TWO, "seeds=2000", "budget.evaluations=100"]
    status, said = interrupted(folder, "search.compare", *arguments)
    assert status == 130, said
    assert f"report: {folder / 'report.html'}" in said
    assert "Traceback" not in said
    shown = page_data(folder)
    assert 0 < len(shown["searches"]) < shown["planned"] == 4000
    ended = (folder / "searches.jsonl").read_text().splitlines()
    assert len(shown["searches"]) == len(ended)
    assert (folder / "report.html").stat().st_size > 1_000_000
