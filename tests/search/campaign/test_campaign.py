"""The command: a suite under one budget, killed and resumed, scored by arm."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evaluators.app.command import compose_config
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Problem
from evaluators.scheduler.pool import Pool
from evaluators.suites.kernelbench import ROOT
from search.campaign import __main__ as campaign
from search.campaign.__main__ import CampaignConfig
from search.campaign.campaign_view import CampaignView, drawn
from search.campaign.config import searches_at_once
from search.campaign.results import over_budget, without_overhead, write
from search.campaign.running import Campaign, CampaignRun, state_of
from search.campaign.schedulers import Equal
from search.campaign.slices import SearchProgress, Slice, StopRules
from search.run.searches import PlannedSearch
from tests.evaluators.scheduler.fake_host import FakeHost
from tests.evaluators.suites.clone import SOURCE, make_clone
from tests.search.interrupted import interrupted

LANDSCAPE = ("problem=landscape", "proposer=landscape", "library.use=false", "branch=2", "rounds=100000")


def on_landscapes(folder: Path, *, evaluations: int, problems: int = 3) -> Campaign:
    return Campaign(
        folder=folder,
        planned=[
            PlannedSearch(
                problem=f"landscape/{number}",
                arm="search",
                weight=1.0,
                overrides=(*LANDSCAPE, f"seed={number}"),
                folder=folder / str(number),
            )
            for number in range(problems)
        ],
        scheduler=Equal(),
        rules=StopRules(),
        slice=10,
        at_once=2,
        limits={"evaluations": evaluations},
    )


def run(made: Campaign) -> CampaignRun:
    running = CampaignRun(made, None, "cpu", lambda run: None)
    asyncio.run(running.run())
    return running


@pytest.mark.slow
def test_the_budget_is_shared_out_in_slices(tmp_path: Path) -> None:
    found = run(on_landscapes(tmp_path, evaluations=75))
    assert sorted(each.evaluations for each in found.searches) == [20, 25, 30]
    assert found.total("evaluations") == 75
    assert all(each.final is not None and each.final > 0 for each in found.searches)
    assert all(len(each.slices) <= 3 for each in found.searches)
    lines = [json.loads(line) for line in (tmp_path / "campaign.jsonl").read_text().splitlines()]
    curve = over_budget(lines, "search", p=0.5)
    assert [spent for spent, _ in curve] == sorted(spent for spent, _ in curve)
    assert curve[-1][0] == 75


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True])
def test_the_final_measurement_is_shown(tmp_path: Path, terminal: bool) -> None:
    console = Console(file=io.StringIO(), width=120, height=20, force_terminal=terminal, color_system=None)
    with CampaignView(console) as view:
        running = CampaignRun(on_landscapes(tmp_path, evaluations=30), None, "cpu", view.show)
        asyncio.run(running.run())
    said = console.file.getvalue()  # type: ignore[attr-defined]
    if terminal:
        assert "to be confirmed" in said
        assert "3 winners to be confirmed" in said
        table = Console(file=io.StringIO(), width=120)
        table.print(drawn(running, 20))
        assert table.file.getvalue().count("confirmed: ") == 3  # type: ignore[attr-defined]
        return
    lines = said.splitlines()
    start = lines.index("measuring 3 winners again to confirm them")
    words = {True: "confirmed", False: "not confirmed"}
    finals = [
        f"{each.problem} search: {words[(each.final_low or 0) > 1]}: {each.final:.2f}x"
        for each in running.searches
    ]
    assert sorted(lines[start:]) == sorted(["measuring 3 winners again to confirm them", *finals])


@pytest.mark.core
@pytest.mark.slow
def test_a_killed_campaign_resumes(tmp_path: Path) -> None:
    first = run(on_landscapes(tmp_path, evaluations=30))
    # as if it had been killed in a slice: the journal is ahead of what the campaign kept
    kept = tmp_path / "campaign.jsonl"
    lines = kept.read_text().splitlines()
    kept.write_text("\n".join(lines[:3]) + '\n{"key": "landsc')
    again = run(on_landscapes(tmp_path, evaluations=30))
    assert [each.evaluations for each in again.searches] == [each.evaluations for each in first.searches]
    further = run(on_landscapes(tmp_path, evaluations=60))
    assert further.total("evaluations") == 60
    for each in further.searches:
        state = state_of(tmp_path / each.problem.partition("/")[2])
        assert state is not None
        assert state.evaluations == each.evaluations


@pytest.mark.slow
def test_a_killed_slice_ends_before_others_begin(tmp_path: Path) -> None:
    whole = run(on_landscapes(tmp_path / "whole", evaluations=60))
    run(on_landscapes(tmp_path / "killed", evaluations=30))
    kept = tmp_path / "killed" / "campaign.jsonl"
    lines = [line for line in kept.read_text().splitlines() if '"slices"' in line]
    kept.write_text("\n".join(lines[:2]) + "\n")
    name = json.loads(lines[2])["value"]["problem"].partition("/")[2]
    journal = tmp_path / "killed" / name / "journal.jsonl"
    events = journal.read_text().splitlines(keepends=True)
    evaluated = [n for n, line in enumerate(events) if '"variant_evaluated"' in line]
    journal.write_text("".join(events[: evaluated[2]]))
    resumed = run(on_landscapes(tmp_path / "killed", evaluations=60))
    assert [[each.evaluations for each in search.slices] for search in resumed.searches] == [
        [each.evaluations for each in search.slices] for search in whole.searches
    ]
    order = [json.loads(line)["key"] for line in kept.read_text().splitlines() if '"slices"' in line]
    assert order[2].split()[0].endswith(name)


@pytest.mark.slow
def test_a_killed_slice_counts_without_budget(tmp_path: Path) -> None:
    first = run(on_landscapes(tmp_path, evaluations=30))
    kept = tmp_path / "campaign.jsonl"
    lines = [line for line in kept.read_text().splitlines() if '"slices"' in line]
    kept.write_text("\n".join(lines[:2]) + "\n")
    found = run(on_landscapes(tmp_path, evaluations=20))
    assert [each.evaluations for each in found.searches] == [each.evaluations for each in first.searches]
    assert all(each.final for each in found.searches)


@pytest.mark.slow
def test_every_limit_counts_over_all_searches(tmp_path: Path) -> None:
    made = on_landscapes(tmp_path, evaluations=30)
    limits = {"evaluations": 30, "calls": 5, "tokens": 1000, "dollars": 1.0, "seconds": 600.0}
    found = run(Campaign(**{**vars(made), "limits": limits}))
    assert found.total("evaluations") == 30
    assert [found.left(unit) for unit in ("evaluations", "calls", "tokens", "dollars")] == [0, 5, 1000, 1.0]
    assert {each.stopped for each in found.searches} == {""}


@pytest.mark.slow
def test_stopped_searches_spend_nothing_more(tmp_path: Path) -> None:
    made = on_landscapes(tmp_path, evaluations=90)
    rules = StopRules(evaluations=20)
    found = run(Campaign(**{**vars(made), "rules": rules}))
    assert {each.stopped for each in found.searches} == {"20 evaluations"}
    assert found.total("evaluations") == 60


CASES = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_cases():
    return [{"sizes": {"size": 64}}, {"sizes": {"size": 128}, "weight": 3.0}]


size = 64


def get_inputs():
    return [torch.randn(4, size)]


def get_init_inputs():
    return []
"""


class WithFloor(FakeHost):
    """The cheapest call takes `floor_ms`, every other call 2 ms."""

    def __init__(self, floor_ms: float) -> None:
        super().__init__()
        self.floor_ms = floor_ms

    async def measure(self, device: int, problem: Problem, *rest: Any) -> Evaluation:
        found = await super().measure(device, problem, *rest)
        assert found.timing is not None
        eager_ms = self.floor_ms if problem.name == "the cheapest call" else 2.0
        samples = {"kernel_samples_ms": (1.0,) * 6, "eager_samples_ms": (eager_ms,) * 6}
        return replace(found, timing=replace(found.timing, eager_ms=eager_ms, **samples))


@pytest.mark.slow
@pytest.mark.parametrize(("floor_ms", "bound", "beyond"), [(0.5, 0, 2.0), (1.5, 2, None)])
def test_cases_bound_by_overhead_are_counted_at_the_end(
    tmp_path: Path, floor_ms: float, bound: int, beyond: float | None
) -> None:
    file = tmp_path / "relu.py"
    file.write_text(CASES)
    made = Campaign(
        folder=tmp_path,
        planned=[
            PlannedSearch(
                problem="relu",
                arm="search",
                weight=1.0,
                overrides=(f"problem={file}", "library.use=false", "branch=2", "rounds=2"),
                folder=tmp_path / "relu",
            )
        ],
        scheduler=Equal(),
        rules=StopRules(),
        slice=4,
        at_once=1,
        limits={"evaluations": 4},
    )
    with Pool(WithFloor(floor_ms)) as pool:
        running = CampaignRun(made, pool, "cpu", lambda run: None)
        asyncio.run(running.run())
    (search,) = running.searches
    assert not search.unfit, search.unfit
    assert search.final == pytest.approx(2.0)
    assert (search.final_bound, search.final_beyond) == (bound, beyond and pytest.approx(beyond))


@pytest.mark.parametrize(
    ("low", "words"),
    [(1.01, "confirmed: 1.30x"), (0.97, "not confirmed: 1.30x"), (None, "measured again: 1.30x")],
)
def test_only_an_interval_above_one_confirms(low: float | None, words: str) -> None:
    search = SearchProgress(problem="a", arm="one", final=1.3, final_low=low)
    run = types.SimpleNamespace(searches=[search], winners=set())
    console = Console(file=io.StringIO(), width=120)
    CampaignView(console).show(run)  # type: ignore[arg-type]
    assert console.file.getvalue().splitlines()[-1] == f"a one: {words}"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_mean_without_overhead_is_printed_too(tmp_path: Path) -> None:
    part = (Slice(evaluations=8, speedup=2.0),)
    plain = SearchProgress(problem="a", arm="one", slices=part, final=4.0)
    half = SearchProgress(problem="b", arm="one", slices=part, final=4.0, final_bound=1, final_beyond=2.0)
    small = SearchProgress(problem="c", arm="one", slices=part, final=8.0, final_bound=3)
    assert without_overhead([plain]) == {}
    said = write(tmp_path, [plain, half, small], 1.0)
    assert "without 4 cases bound by overhead: mean 2 " in "\n".join(said)
    against = json.loads((tmp_path / "campaign.json").read_text())["arms"]["one"]["against eager"]
    assert against["without overhead"]["value"] == pytest.approx(2.0)
    assert against["geometric mean"]["value"] == pytest.approx(128 ** (1 / 3))
    rows = list(csv.DictReader((tmp_path / "scores.csv").open()))
    assert [(row["final_bound"], row["final_beyond"]) for row in rows] == [("", ""), ("1", "2.0"), ("3", "")]


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv(ROOT, str(make_clone(tmp_path / "clone")))
    monkeypatch.setattr("evaluators.scheduler.local_host.LocalHost", lambda **_: FakeHost())
    return ["suite=shipped", "only=[level1/softmax,level1/layernorm]", "pool=local", "device=cpu", "branch=2"]


@pytest.mark.slow
def test_a_suite_from_the_command_line(
    tmp_path: Path, suite: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "campaign"
    arms = ["arms.one=[]", 'arms.other=["strategy=best_of_n"]']
    call = [*suite, *arms, "budget.evaluations=24", "slice=4", "library.use=false", f"hydra.run.dir={folder}"]
    assert campaign.main(call) == 0
    said = capsys.readouterr().out
    assert "fast_1" in said
    body = json.loads((folder / "campaign.json").read_text())
    assert set(body["arms"]) == {"one", "other"}
    assert body["arms"]["one"]["problems"] == 2
    spent = sum(arm["spent"]["evaluations"] for arm in body["arms"].values())
    assert spent == 24
    rows = list(csv.DictReader((folder / "scores.csv").open()))
    assert {(row["problem"], row["arm"]) for row in rows} == {
        (problem, arm) for problem in ("level1/softmax", "level1/layernorm") for arm in ("one", "other")
    }
    assert campaign.main([f"resume={folder}"]) == 0
    again = json.loads((folder / "campaign.json").read_text())
    assert again["searches"] == body["searches"]


@pytest.mark.slow
def test_sizes_apply_to_references_that_have_them(tmp_path: Path, suite: list[str]) -> None:
    folder = tmp_path / "campaign"
    more = ["problem.sizes={height:8,features:128}", "problem.tolerance=strict", "library.use=false"]
    assert campaign.main([*suite, *more, "budget.evaluations=8", "slice=4", f"hydra.run.dir={folder}"]) == 0
    body = json.loads((folder / "campaign.json").read_text())
    assert body["not searched"] == {}
    for name, sizes in (("softmax", {"features": 128}), ("layernorm", {"features": 128, "height": 8})):
        state = state_of(folder / "level1" / name / "search")
        assert state is not None
        assert state.started is not None
        problem = state.started.problem
        assert problem.tolerance == "strict"
        assert {key: problem.overrides.get(key) for key in ("features", "height")} == {
            "height": None,
            **sizes,
        }


@pytest.mark.slow
def test_problems_that_cannot_be_searched_are_named(
    tmp_path: Path,
    suite: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "campaign"
    clone = make_clone(tmp_path / "other")
    monkeypatch.setenv("KERNELBENCH_ROOT", str(clone))
    file = clone / "KernelBench" / "level2" / "3_Scaled_sum_.py"
    file.write_text(SOURCE.format(expression="x.cumsum(-1)"))
    call = ["suite=kernelbench/level2", *suite[2:], "budget.evaluations=8", f"hydra.run.dir={folder}"]
    assert campaign.main(call) == 0
    said = capsys.readouterr().out
    assert "not searched: kernelbench/level2/3_Scaled_sum_: the playbook does not know" in said
    body = json.loads((folder / "campaign.json").read_text())
    assert len(body["not searched"]) >= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([], "a campaign needs a budget"),
        (["budget.evaluations=5", "slice=0"], "slice is 0"),
        (["budget.evaluations=0"], "budget.evaluations is 0"),
        (["budget.evaluations=5", "only=[level1/nothing]"], "has no problem level1/nothing"),
        (["budget.evaluations=5", "problem.sizes.batchh=4"], "problem.sizes.batchh: no reference has it"),
        (["budget.evaluations=5", 'arms.x=["strateg=puct"]'], "unknown key strateg"),
        (["budget.evaluations=5", "scheduler=best"], "unknown scheduler best"),
        (["budget.evaluations=5", "device=gpu"], "device is gpu"),
        (["resume=nowhere"], "no campaign in this folder"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, suite: list[str], capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    kept = [each for each in suite if not any(one.startswith("only") for one in more) or "only" not in each]
    assert campaign.main([*kept, *more, f"hydra.run.dir={tmp_path / 'campaign'}"]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_an_interrupt_leaves_a_report(tmp_path: Path) -> None:
    folder = tmp_path / "campaign"
    arguments = ["suite=shipped", "proposer=landscape", "library.use=false", "budget.evaluations=1000000"]
    status, said = interrupted(folder, "search.campaign", *arguments)
    assert status == 130, said
    assert f"report: {folder / 'report.html'}" in said
    assert not (folder / "campaign.json").exists()
    assert (folder / "report.html").stat().st_size > 1_000_000


@pytest.mark.slow
def test_more_devices_run_more_searches() -> None:
    plain = compose_config(CampaignConfig, ["suite=shipped"])
    assert [searches_at_once(plain, devices) for devices in (1, 8)] == [4, 25]
    assert searches_at_once(compose_config(CampaignConfig, ["suite=shipped", "at_once=2"]), 8) == 2
