"""The rows of each format, from runs with known figures."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evaluators.records.evaluation import Status
from evaluators.records.problem import Case, Problem
from evaluators.records.race import after_quick_stage
from evaluators.reference.loading import load_problem
from evaluators.rewards.requested_problems import RequestedProblems
from kernel_library.catalogue.entry import Entry, Lineage, Measurement
from kernel_library.catalogue.library import FolderLibrary
from search.harvest.corpus import Corpus, HarvestError, read_library, read_runs, solutions_of
from search.harvest.format import Format
from search.harvest.formats.idea import IdeaOutcome
from search.harvest.formats.improvement import Improvement
from search.harvest.formats.kernelbook import Kernelbook
from search.harvest.formats.preference import Preference
from search.harvest.formats.repair import Repair
from search.harvest.formats.rl import Rl, request
from search.harvest.formats.sft import Sft
from search.harvest.formats.trajectory import Trajectory
from search.recordings.archives import pack
from search.records.tree import LIBRARY, Seed
from tests.search.harvest.story import Story, correct, failed, kernel, problem

RELU = problem("relu", overrides={"features": 8})
A, B, C, D, E = (kernel(name) for name in "abcde")


def track(sequence: Any, _: str) -> Any:
    return sequence


def corpus(root: Path, entries: list[Entry] | None = None) -> Corpus:
    runs = read_runs([root], "mit", track)
    return Corpus(runs=runs, from_library=solutions_of(entries or [], runs, "mit"))


def rows(format: Format, root: Path) -> list[dict[str, Any]]:
    """The format's rows from the runs below a folder; checks that each has exactly its columns."""
    found = [dict(row.values) for row in format.rows(corpus(root), Counter())]
    names = [column.name for column in format.columns]
    assert len(set(names)) == len(names)
    assert all(set(row) == set(names) for row in found)
    return found


def names(row: dict[str, Any], *columns: str) -> list[str]:
    """The names of kernels, by their sources."""
    known = {each.source: name for name, each in zip("ABCDE", (A, B, C, D, E), strict=True)}
    return [known[row[column]] for column in columns]


def test_sft(tmp_path: Path) -> None:
    story = Story(tmp_path / "run", RELU)
    first = story.idea("first")
    a = story.variant(first, A, correct(2.0, kernel_ms=0.25))
    story.variant(first, B, failed())
    story.variant(first, E, None)
    b = story.variant(story.idea("second", a.id), C, correct(3.0))
    story.variant(story.idea("third", b.id), D, failed(Status.INFRASTRUCTURE_ERROR))
    one, two = rows(Sft(), tmp_path)
    assert names(one, "kernel") + names(two, "kernel") == ["A", "C"]
    assert (one["idea"], one["lineage"]) == ("first", [])
    assert (two["idea"], two["lineage"]) == ("second", ["first"])
    assert (one["kernel_ms"], one["kernel_speedup"], one["eager_ms"], one["compile_ms"]) == (
        0.25,
        2,
        0.5,
        None,
    )
    assert "features = 8\n" in one["reference"]
    judged_by = json.loads(one["rules"])
    assert {
        name: getattr(RELU, name) for name in ("tolerance", "libraries", "device")
    }.items() <= judged_by.items()


@pytest.mark.parametrize(
    ("min_speedup", "kept"), [(None, ["C", "D"]), (0.0, ["A", "B", "C", "D"]), (2.0, ["D"])]
)
def test_sft_takes_significantly_faster_kernels(
    tmp_path: Path, min_speedup: float | None, kept: list[str]
) -> None:
    """B's median is 1.005, the lower end of its interval below 1."""
    story = Story(tmp_path / "run", RELU)
    idea = story.idea("an idea")
    for each, speedup in ((A, 0.5), (B, 1.005), (C, 2.0), (D, 3.0)):
        story.variant(idea, each, correct(speedup))
    format = Sft() if min_speedup is None else Sft(min_speedup)
    assert [name for row in rows(format, tmp_path) for name in names(row, "kernel")] == kept


@pytest.mark.parametrize(
    "format", [Sft(), Improvement(), Preference(), Repair(), Trajectory(), IdeaOutcome()]
)
def test_no_row_is_made_of_a_kernel_that_a_race_left_out(tmp_path: Path, format: Format) -> None:
    """Nobody knows whether it is correct, so that it is neither an example, nor a failure."""
    story = Story(tmp_path / "run", RELU)
    idea = story.idea("first")
    story.variant(idea, A, correct(2.0))
    fixed = story.variant(idea, B, failed())
    story.variant(idea, C, after_quick_stage(correct(9.0), None))
    story.variant(idea, D, correct(3.0), repairs=fixed.id)
    found = rows(format, tmp_path)
    assert found or isinstance(format, Improvement)
    assert C.source not in json.dumps(found)


def test_a_kernel_has_the_times_of_the_last_comparison(tmp_path: Path) -> None:
    story = Story(tmp_path / "run", RELU)
    idea = story.idea("an idea")
    one, two, cheat = (story.variant(idea, each, correct(2.0)) for each in (A, B, C))
    story.compare({one: correct(1.5), two: failed(Status.INFRASTRUCTURE_ERROR)})
    story.compare({one: correct(1.25), cheat: failed(Status.REJECTED)})
    found = {names(row, "kernel")[0]: row["kernel_speedup"] for row in rows(Sft(), tmp_path)}
    assert found == {"A": 1.25, "B": 2.0}


def test_provenance(tmp_path: Path) -> None:
    story = Story(tmp_path / "file" / "run", RELU)
    a = story.variant(story.idea("first"), A, correct(2.0))
    hydra = tmp_path / "file" / "run" / ".hydra"
    hydra.mkdir()
    (hydra / "config.yaml").write_text("strategy: {}\n")
    (hydra / "overrides.yaml").write_text(
        "- problem=file\n- problem.path=my model.py\n- llm.local.base_url=http://gpu7:8000/v1\n"
    )
    (row,) = rows(Sft(), tmp_path)
    assert row["run"] == "file/run"
    assert (row["variants"], row["entry"], row["proposers"], row["models"]) == (
        [a.id],
        "",
        ["llm"],
        ["a model"],
    )
    assert (row["device"], json.loads(row["versions"])) == ("Fake GPU", {"torch": "9.9"})
    assert row["command"] == "python -m search.run problem=file 'problem.path=my model.py'"
    assert (row["reference_license"], row["kernel_license"]) == ("mit", "mit")
    assert (row["problem"], row["problem_id"]) == (RELU.name, RELU.id)


def test_one_run_below_two_folders_is_read_once(tmp_path: Path) -> None:
    Story(tmp_path / "x" / "run", RELU)
    runs = read_runs([tmp_path, tmp_path / "x", tmp_path / "x" / "run"], "mit", track)
    assert [run.name for run in runs] == ["x/run"]
    assert [run.name for run in read_runs([tmp_path / "x" / "run"], "mit", track)] == ["run"]


def test_a_broken_journal_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Story(tmp_path / "good", RELU)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "journal.jsonl").write_text("nonsense\n{}\n")
    assert [run.name for run in read_runs([tmp_path], "mit", track)] == ["good"]
    assert "bad/journal.jsonl, line 1 is corrupt" in caplog.text
    with pytest.raises(HarvestError, match="nowhere is not a folder"):
        read_runs([tmp_path / "nowhere"], "mit", track)


def test_improvement(tmp_path: Path) -> None:
    story = Story(tmp_path / "run", RELU)
    a = story.variant(story.idea("first"), A, correct(2.0, kernel_ms=0.5))
    second = story.idea("second", a.id)
    b = story.variant(second, B, correct(3.0, kernel_ms=0.3))
    story.variant(second, C, correct(2.01))  # not significantly faster
    story.variant(second, D, failed())
    (row,) = rows(Improvement(), tmp_path)
    assert names(row, "before", "after") == ["A", "B"]
    assert (row["before_ms"], row["after_ms"], row["gain"], row["idea"]) == (0.5, 0.3, 1.5, "second")
    assert row["variants"] == [a.id, b.id]


def test_improvement_of_an_entry_needs_the_same_device(tmp_path: Path) -> None:
    for name, device in (("here", None), ("elsewhere", {"device": "another"})):
        entry = Seed(id="entry", kernel=A, evaluation=correct(2.0, device=device))
        story = Story(tmp_path / name / "run", RELU, entries=(entry,))
        story.variant(story.idea("better", "entry"), B, correct(4.0))
    (row,) = rows(Improvement(), tmp_path / "here")
    assert (names(row, "before", "after"), row["gain"]) == (["A", "B"], 2.0)
    assert rows(Improvement(), tmp_path / "elsewhere") == []


def test_a_measured_library_kernel_is_a_start_but_not_a_result(tmp_path: Path) -> None:
    entry = Seed(id="entry", kernel=A, evaluation=correct(2.0, device={"device": "another"}))
    story = Story(tmp_path / "run", RELU, entries=(entry,))
    taken = story.variant(story.idea("as it is", "entry", proposer=LIBRARY), A, correct(3.0))
    story.variant(story.idea("better", "entry"), B, correct(6.0))
    story.variant(story.idea("better still", taken.id), C, correct(9.0))
    assert [row["idea"] for row in rows(Sft(), tmp_path)] == ["better", "better still"]
    assert [(row["idea"], row["gain"]) for row in rows(Improvement(), tmp_path)] == [
        ("better", 2.0),
        ("better still", 3.0),
    ]
    for row in rows(Trajectory(), tmp_path):
        assert names(row, "start") == ["A"] and len(row["steps"]) == 1
        assert row["total_reward"] == pytest.approx(math.log(row["final_speedup"] / 3.0))
    assert rows(Preference(), tmp_path) == []


def test_preference(tmp_path: Path) -> None:
    story = Story(tmp_path / "run", RELU)
    first, second = story.idea("first"), story.idea("second")
    story.variant(first, A, correct(2.0, kernel_ms=0.5))
    story.variant(first, B, correct(4.0, kernel_ms=0.2))
    story.variant(first, C, failed(Status.REJECTED, "too fast to be true"))
    story.variant(second, D, correct(3.99))  # not significantly slower than B
    story.variant(story.idea("third"), E, failed())
    found = rows(Preference(), tmp_path)
    slower, cheat, other = found
    assert [(row["of"], row["reason"]) for row in found] == [
        ("idea", "slower"),
        ("idea", "rejected"),
        ("parent", "incorrect"),
    ]
    assert names(slower, "chosen_kernel", "rejected_kernel") == ["B", "A"]
    assert (slower["chosen_ms"], slower["rejected_ms"]) == (0.2, 0.5)
    assert names(cheat, "chosen_kernel", "rejected_kernel") == ["B", "C"]
    assert (cheat["rejected_rule"], cheat["rejected_ms"]) == ("too_fast", None)
    assert names(other, "chosen_kernel", "rejected_kernel") == ["B", "E"]
    assert (other["chosen_idea"], other["rejected_idea"]) == ("first", "third")
    assert other["parent"] == ""


def test_a_repair_needs_a_link_in_the_journal(tmp_path: Path) -> None:
    story = Story(tmp_path / "run", RELU)
    idea = story.idea("first")
    a = story.variant(idea, A, failed(Status.COMPILE_ERROR, "no such name"))
    b = story.variant(idea, B, failed(log="still off"), repairs=a.id)
    c = story.variant(idea, C, correct(2.0, kernel_ms=0.7), repairs=b.id)
    story.variant(idea, D, correct(3.0))
    (row,) = rows(Repair(), tmp_path)
    assert names(row, "failed", "fixed") == ["B", "C"]
    assert (row["status"], row["log"], row["fixed_ms"]) == ("incorrect", "still off", 0.7)
    assert row["variants"] == [c.id, b.id]


def test_trajectories_and_rewards(tmp_path: Path) -> None:
    story = Story(tmp_path / "run", RELU)
    first = story.idea("first")
    a = story.variant(first, A, failed())
    b = story.variant(first, B, correct(2.0), repairs=a.id)
    second = story.idea("second", b.id)
    story.variant(second, C, correct(1.0))
    story.variant(second, D, failed(Status.REJECTED))
    story.variant(second, E, None)
    slower, cheat = rows(Trajectory(failed=-0.5, rejected=-2.0), tmp_path)
    assert [step["reward"] for step in slower["steps"]] == [-0.5, math.log(2), -math.log(2)]
    assert [step["status"] for step in slower["steps"]] == ["incorrect", "correct", "correct"]
    assert [step["reward"] for step in cheat["steps"]] == [-0.5, math.log(2), -2.0]
    assert cheat["total_reward"] == pytest.approx(math.log(2) - 2.5)
    assert (slower["final_speedup"], cheat["final_speedup"]) == (1.0, 2.0)
    assert cheat["steps"][2]["rule"] == "too_fast"
    assert slower["steps"][1]["repairs"] == a.id
    assert slower["variants"] == [step["variant"] for step in slower["steps"]]


@pytest.mark.parametrize(("device", "reward"), [(None, math.log(3)), ({"device": "another"}, 0.0)])
def test_a_branch_is_not_rewarded_for_the_entry_that_it_starts_from(
    tmp_path: Path, device: dict[str, str] | None, reward: float
) -> None:
    entry = Seed(id="entry", kernel=A, evaluation=correct(2.0, device=device))
    story = Story(tmp_path / "run", RELU, entries=(entry,))
    b = story.variant(story.idea("first", "entry"), B, correct(6.0))
    story.variant(story.idea("second", b.id), C, correct(12.0))
    (row,) = rows(Trajectory(), tmp_path)
    assert names(row, "start") == ["A"]
    assert [step["reward"] for step in row["steps"]] == pytest.approx([reward, math.log(2)])


def test_a_failure_is_not_rewarded() -> None:
    with pytest.raises(ValueError, match="must not be above 0"):
        Trajectory(failed=0.1)


def test_tasks_for_reinforcement_learning(tmp_path: Path) -> None:
    story = Story(tmp_path / "run", RELU)
    first = story.idea("first")
    a = story.variant(first, A, correct(2.0, kernel_ms=0.25))
    b = story.variant(first, B, failed(log="off by one"))
    story.variant(first, C, correct(3.0), repairs=b.id)
    story.variant(story.idea("second", a.id), D, failed(Status.REJECTED))
    code, repair, second = rows(Rl(), tmp_path)
    assert [each["kind"] for each in (code, repair, second)] == ["code", "repair", "code"]
    assert (code["tries"], code["solved"], code["best_speedup"], code["eager_ms"]) == (2, 0.5, 2.0, 0.5)
    assert (repair["tries"], repair["solved"], repair["log"]) == (1, 1.0, "off by one")
    assert names(repair, "parent") == ["B"]
    assert (second["solved"], second["best_ms"]) == (0.0, None)
    assert names(second, "parent") == ["A"]
    assert "first" in code["prompt"][1]["content"]
    asked = json.loads(second["request"])
    assert asked["parent"] == A.source
    assert asked["reference"] == RELU.source


REQUESTED = [
    load_problem("level1/softmax", device="cuda", sizes={"batch": 8}),
    load_problem("transformer/mixture_of_experts", device="cuda", dtype="bfloat16"),
    problem("relu", overrides={"features": 8}, layout="strided", libraries="no_library", device="cuda"),
    problem("relu", cases=(Case(sizes={"features": 8}), Case(dtype="bfloat16", weight=2.0)), device="cuda"),
]


@pytest.mark.parametrize("stated", REQUESTED, ids=range(len(REQUESTED)))
def test_a_request_states_the_very_problem(stated: Problem) -> None:
    asked = json.loads(json.dumps(request(stated, "")))
    problems = RequestedProblems("cuda")
    found = (
        problems.named(asked["problem"], asked["problem_keys"])
        if "problem" in asked
        else problems.stated(asked["reference"], asked["problem_keys"])
    )
    assert found.id == stated.id


def test_tasks_need_rules_that_a_request_can_state(tmp_path: Path) -> None:
    story = Story(tmp_path / "run", problem("relu", floor=False))
    story.variant(story.idea("first"), A, correct(2.0))
    left_out: Counter[str] = Counter()
    assert not list(Rl().rows(corpus(tmp_path), left_out))
    assert left_out.total() == 1


def test_packed_runs_are_read(tmp_path: Path) -> None:
    story = Story(tmp_path / "story", RELU)
    story.variant(story.idea("first"), A, correct(2.0))
    pack(tmp_path / "story", tmp_path / "packed.tar.xz")
    (tmp_path / "broken.tar.xz").write_bytes(b"no archive")
    found = read_runs([tmp_path], "mit", track)
    assert [each.name for each in found] == ["story", "packed"]


def test_ideas_with_what_was_expected_and_what_was_measured(tmp_path: Path) -> None:
    story = Story(tmp_path / "run", RELU)
    first = story.idea("first", gain=1.5)
    a = story.variant(first, A, correct(2.0))
    story.variant(first, B, failed())
    second = story.idea("second", a.id)
    story.variant(second, C, correct(3.0))
    third = story.idea("third", a.id)
    story.variant(third, D, failed(Status.REJECTED))
    story.variant(story.idea("never judged"), E, None)
    one, two, three = rows(IdeaOutcome(), tmp_path)
    assert [each["idea"] for each in (one, two, three)] == ["first", "second", "third"]
    assert [each["gain"] for each in (one, two, three)] == [2.0, 1.5, None]
    assert [(each["tried"], each["correct"]) for each in (one, two, three)] == [(2, 1), (1, 1), (1, 0)]
    assert (one["predicted_gain"], two["predicted_gain"]) == (1.5, None)
    assert (one["parent_idea"], two["parent_idea"]) == ("", first.id)
    assert (one["parent"], two["parent"]) == ("", A.source)
    assert [each["status"] for each in one["kernels"]] == ["correct", failed().status.value]
    assert [each["speedup"] for each in one["kernels"]] == [2.0, None]
    assert three["kernels"][0]["status"] == "rejected"


def test_kernelbook(tmp_path: Path) -> None:
    story = Story(tmp_path / "run", RELU)
    first = story.idea("first")
    story.variant(first, A, correct(2.0))
    story.variant(first, kernel("b", language="cpp"), correct(3.0))
    (row,) = rows(Kernelbook(), tmp_path)
    assert names(row, "triton_code") == ["A"]
    assert row["entry_point"] == "Model"
    assert row["licenses"] == ["mit"]
    assert isinstance(row["uuid"], int)
    assert "features = 8\n" in row["python_code"]


POSITIVES = [
    (Sft(), "kernel"),
    (Improvement(), "after"),
    (Preference(), "chosen_kernel"),
    (Repair(), "fixed"),
]


@pytest.mark.parametrize(("format", "column"), [*POSITIVES, (Kernelbook(), "triton_code")])
def test_a_cheat_found_in_any_run_is_never_a_positive(tmp_path: Path, format: Format, column: str) -> None:
    """B passes in one run and is rejected in another, on other sizes; C is rejected when it is confirmed."""
    story = Story(tmp_path / "one", RELU)
    a = story.variant(story.idea("first"), A, correct(1.0))
    second = story.idea("second", a.id)
    e = story.variant(second, E, failed())
    story.variant(second, D, correct(3.0), repairs=e.id)
    b = story.variant(second, B, correct(50.0), repairs=e.id)
    c = story.variant(second, C, correct(40.0), repairs=b.id)
    story.confirm(c, failed())
    other = Story(tmp_path / "two", problem("relu", overrides={"features": 9}))
    other.variant(other.idea("first"), B, failed(Status.REJECTED))
    found = rows(format, tmp_path)
    assert found
    assert not {row[column] for row in found} & {B.source, C.source}


def test_a_cheat_found_in_another_run_is_labelled(tmp_path: Path) -> None:
    story = Story(tmp_path / "one", RELU)
    first = story.idea("first")
    story.variant(first, A, correct(1.0))
    story.variant(first, B, correct(50.0))
    other = Story(tmp_path / "two", problem("relu"))
    other.variant(other.idea("first"), B, failed(Status.REJECTED))
    (row,) = rows(Preference(), tmp_path)
    assert (names(row, "chosen_kernel", "rejected_kernel"), row["rejected_rule"]) == (["A", "B"], "too_fast")
    rewards = [row["steps"][0]["reward"] for row in rows(Trajectory(), tmp_path)]
    assert rewards == [0.0, -1.0, -1.0]


def test_library(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    story = Story(tmp_path / "run", RELU)
    story.variant(story.idea("first"), A, correct(2.0))
    other = Story(tmp_path / "other", problem("relu"))
    other.variant(other.idea("first"), C, failed(Status.REJECTED))
    library = FolderLibrary(tmp_path / "library")
    for each, about in ((A, RELU), (B, RELU), (C, RELU), (D, problem("erfc"))):
        library.add(
            Entry(
                kernel=each,
                measurements=(Measurement(problem=about, evaluation=correct(2.0)),),
                lineage=Lineage(ideas=("the first", "an idea")),
                licence="apache-2.0" if each is D else "",
            )
        )
    (tmp_path / "library" / "broken").mkdir()
    (tmp_path / "library" / "broken" / "card.yaml").write_text("{}")
    entries = read_library([tmp_path / "library", tmp_path / "library", tmp_path / "nowhere"])
    assert len(entries) == 4
    found = list(corpus(tmp_path, entries).solutions())
    assert [each.kernel.id for each in found[:1]] == [A.id]
    licences = {each.kernel.id: each.origin["kernel_license"] for each in found[1:]}
    assert licences == {A.id: "mit", B.id: "mit", D.id: "apache-2.0"}, "C cheats"
    told = {(each.idea, each.lineage) for each in found[1:] if each.origin["entry"]}
    assert told == {("an idea", ("the first",))}
    assert "broken cannot be read" in caplog.text
