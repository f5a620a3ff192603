"""`ideatree harvest` turns searches into datasets that `datasets.load_dataset` opens."""

from __future__ import annotations

import filecmp
import itertools
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluators.records.evaluation import Status
from kernel_library.catalogue.entry import Entry, Lineage, Measurement
from kernel_library.catalogue.library import FolderLibrary
from search.harvest import __main__ as harvest
from search.records.journal import replay
from search.records.run_state import RunState, rebuild
from search.records.tree import Variant
from tests.search import fakes
from tests.search.harvest.story import Story, correct, failed, kernel, problem

pytestmark = pytest.mark.slow

RECORDING = Path(__file__).parents[1] / "recordings" / "softmax_cpu"
OPERATIONS = ("erfc", "exp2", "sinc", "frac", "digamma", "relu", "logit", "sgn", "erfinv", "trunc")
FORMATS = ("sft", "improvement", "preference", "repair", "trajectory", "idea", "rl", "kernelbook")
TRL = {
    "sft": ("messages", "prompt", "completion"),
    "improvement": ("messages", "prompt", "completion"),
    "repair": ("messages", "prompt", "completion"),
    "preference": ("prompt", "chosen", "rejected"),
}
"""The columns of TRL's formats (huggingface.co/docs/trl/dataset_formats): prompt-completion for SFT, and
preference for DPO."""
ROLES = {"messages": ["system", "user", "assistant"], "prompt": ["system", "user"]}
SHARES = ["splits.validation=0.3", "splits.test=0.3"]
POSITIVE = {
    "sft": "kernel",
    "improvement": "after",
    "preference": "chosen_kernel",
    "repair": "fixed",
    "kernelbook": "triton_code",
}

Load = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Opens a dataset's folder offline; returns the rows with their split."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
        datasets = pytest.importorskip("datasets")
        cache = tmp_path_factory.mktemp("cache")

        def load(folder: Path) -> list[dict[str, Any]]:
            opened = datasets.load_dataset(str(folder), cache_dir=str(cache))
            return [{**row, "split": split} for split, rows in opened.items() for row in rows]

        yield load


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Searches of ten problems, one of them twice with other sizes."""
    root = tmp_path_factory.mktemp("outputs")
    for seed, operation in enumerate((*OPERATIONS, OPERATIONS[0])):
        folder = root / f"{operation}_{seed}"
        folder.mkdir()
        about = problem(operation, overrides={"features": seed + 1})
        fakes.search(folder / "journal.jsonl", problem=about, seed=seed, repairs=1, rounds=3)
    return root


@pytest.fixture(scope="module")
def harvested(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets of these runs in every format."""
    out = tmp_path_factory.mktemp("harvested")
    for name in FORMATS:
        assert call(f"format={name}", f"out={out / name}", f"runs={runs}", *SHARES) == 0
    return out


def call(*arguments: str) -> int:
    return harvest.main([*arguments, "libraries=[]"] if not _names_libraries(arguments) else arguments)


def _names_libraries(arguments: tuple[str, ...]) -> bool:
    return any(argument.startswith("libraries=") for argument in arguments)


def states(runs: Path) -> dict[str, RunState]:
    return {path.parent.name: rebuild(replay(path)) for path in runs.glob("*/journal.jsonl")}


@pytest.mark.parametrize("name", FORMATS)
def test_load_dataset_opens_parquet_and_jsonl(name: str, harvested: Path, load: Load) -> None:
    parquet, jsonl = load(harvested / name), load(harvested / name / "jsonl")
    assert parquet == jsonl
    assert len(parquet) >= 10
    assert len({row["split"] for row in parquet}) > 1
    provenance = ("run", "variants", "problem_id", "proposers", "reference_license", "kernel_license")
    assert all(row[column] for row in parquet for column in provenance)


@pytest.mark.parametrize("name", TRL)
def test_trl_accepts_the_dataset_unchanged(name: str, harvested: Path, load: Load) -> None:
    for row in load(harvested / name):
        for column in TRL[name]:
            assert [message["role"] for message in row[column]] == ROLES.get(column, ["assistant"])
            assert all(message.keys() == {"role", "content"} for message in row[column])
            assert all(message["content"].strip() for message in row[column])
        # Columns that its trainers would misinterpret.
        assert not {"text", "label", "tools", "image", "images", "conversations", "input_ids"} & row.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_no_problem_is_in_two_splits(name: str, harvested: Path, load: Load) -> None:
    clients: defaultdict[str, set[str]] = defaultdict(set)
    for row in load(harvested / name):
        clients[row["problem"]].add(row["split"])
    assert len(clients) > 5
    assert all(len(each) == 1 for each in clients.values())


@pytest.mark.parametrize("name", POSITIVE)
def test_positives_are_correct_and_have_the_times_of_the_journal(
    name: str, harvested: Path, runs: Path, load: Load
) -> None:
    column, there = POSITIVE[name], states(runs)
    for row in load(harvested / name):
        state = there[row["run"]]
        variants = [state.tree.variants[each] for each in row["variants"]]
        (variant,) = [each for each in variants if each.kernel.source == row[column]]
        timing = verdict(state, variant).timing
        assert timing is not None
        if name == "kernelbook":
            assert row["speedup"] == timing.speedup
        else:
            figures = (timing.kernel_ms, timing.speedup, timing.speedup_low, timing.speedup_high)
            ends = ("_ms", "_speedup", "_speedup_low", "_speedup_high")
            assert tuple(row[column.removesuffix("_kernel") + end] for end in ends) == figures


def verdict(state: RunState, variant: Variant) -> Any:
    return state.confirmed.get(variant.kernel.id) or variant.evaluation


def test_every_branch_of_every_run_is_a_trajectory(harvested: Path, runs: Path, load: Load) -> None:
    rows = load(harvested / "trajectory")
    there = states(runs)
    told = {(row["run"], variant) for row in rows for variant in row["variants"]}
    assert told == {(run, id) for run, state in there.items() for id in state.tree.variants}
    for row in rows:
        steps = [there[row["run"]].tree.variants[each] for each in row["variants"]]
        for before, after in itertools.pairwise(steps):
            assert before.id == (after.repairs or after.parent)
        assert row["total_reward"] == pytest.approx(sum(step["reward"] for step in row["steps"]))


def test_the_same_input_gives_the_same_files(harvested: Path, runs: Path, tmp_path: Path) -> None:
    for name in ("sft", "trajectory"):
        assert call(f"format={name}", f"out={tmp_path / name}", f"runs={runs}", *SHARES) == 0
        files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
        assert len(files) >= 8
        assert filecmp.cmpfiles(tmp_path, harvested, files, shallow=False)[0] == files


@pytest.mark.parametrize("name", FORMATS[:-1])
def test_the_recorded_search(name: str, tmp_path: Path, load: Load) -> None:
    arguments = [f"format={name}", f"out={tmp_path / name}", f"runs={RECORDING.parent}"]
    every = ["format.min_speedup=0"] * (name == "sft")
    assert call(*arguments, "duplicates.threshold=1", *every) == 0
    rows = load(tmp_path / name)
    state = rebuild(replay(RECORDING / "journal.jsonl"))
    variants = state.tree.variants.values()
    right = [each for each in variants if verdict(state, each).status is Status.CORRECT]
    expected = {"sft": len(right), "repair": sum(bool(each.repairs) for each in right)}
    assert len(rows) == expected.get(name, len(rows)) > 0
    assert all("batch = 256\n" in row["reference"] for row in rows), "the sizes that were measured"
    assert {row["device"] for row in rows} == {"AMD EPYC, 2 cores"}
    assert all(row["command"].startswith("python -m search.run problem=level1/softmax") for row in rows)
    assert {row["reference_license"] for row in rows} == {"apache-2.0"}


def test_planted_duplicates_and_cheats_are_excluded(tmp_path: Path, load: Load) -> None:
    story = Story(tmp_path / "runs" / "one", problem("erfc"))
    idea = story.idea("an idea")
    plants = {
        "kept": (kernel("a"), correct(3.0)),
        "near duplicate": (kernel("a", changed=1), correct(2.0)),
        "duplicate but for white space": (spaced(), correct(2.5)),
        "another": (kernel("b"), correct(1.5)),
        "cheat": (kernel("c"), failed(Status.REJECTED)),
        "wrong": (kernel("d"), failed()),
    }
    for planted, evaluation in plants.values():
        story.variant(idea, planted, evaluation)
    again = Story(tmp_path / "runs" / "two", problem("erfc"))
    again.variant(again.idea("the same"), kernel("a"), correct(2.9))
    library = FolderLibrary(tmp_path / "library")
    for each in (kernel("a"), kernel("c"), kernel("e")):
        measured = Measurement(problem=story.problem, evaluation=correct(2.0))
        library.add(Entry(kernel=each, measurements=(measured,)))
    for name in ("sft", "kernelbook"):
        places = [f"runs={tmp_path / 'runs'}", f"libraries={tmp_path / 'library'}"]
        assert harvest.main([f"format={name}", f"out={tmp_path / name}", *places]) == 0
        found = {row[POSITIVE[name]]: row for row in load(tmp_path / name)}
        assert set(found) == {kernel(each).source for each in "abe"}
        assert found[kernel("a").source]["run"] == "one"
        assert found[kernel("e").source]["entry"]


def spaced() -> Any:
    plain = kernel("a")
    return type(plain)(source=plain.source.replace(" + ", "  +  "), language=plain.language)


def test_planted_benchmark_problems_are_excluded(tmp_path: Path, load: Load) -> None:
    for operation in ("relu", "erfc", "digamma"):
        story = Story(tmp_path / "runs" / operation, problem(operation))
        story.variant(story.idea("an idea"), kernel(operation), correct(2.0))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "1_secret.py").write_text(problem("erfc").source.replace("64", "65"))
    options: dict[str, list[str]] = {
        "none": [],
        "kernelbench": ["decontaminate=kernelbench"],
        "mine": [f"decontaminate.path={tmp_path / 'mine'}"],
        "both": ["decontaminate=kernelbench", f"decontaminate.path={tmp_path / 'mine'}"],
    }
    kept = {}
    for name, chosen in options.items():
        out = tmp_path / "out" / name
        assert call("format=sft", f"out={out}", f"runs={tmp_path / 'runs'}", *chosen) == 0
        kept[name] = {row["run"] for row in load(out)}
    assert kept == {
        "none": {"relu", "erfc", "digamma"},
        "kernelbench": {"erfc", "digamma"},
        "mine": {"relu", "digamma"},
        "both": {"digamma"},
    }


def test_library_entries_are_harvested_without_runs(tmp_path: Path, load: Load) -> None:
    from evaluators.app.command import build, compose_config
    from search.run.config import RunConfig

    config = compose_config(RunConfig, ["problem=level1/softmax", "proposer=playbook"])
    about = build(config.problem, device="cuda")
    library = FolderLibrary(tmp_path / "library")
    measured = Measurement(problem=about, evaluation=correct(2.0))
    library.add(Entry(kernel=kernel("a"), measurements=(measured,), lineage=Lineage(ideas=("i",))))
    (tmp_path / "runs").mkdir()
    places = [f"runs={tmp_path / 'runs'}", f"libraries=[{tmp_path / 'library'}]"]
    assert harvest.main(["format=sft", f"out={tmp_path / 'out'}", *places]) == 0
    (row,) = load(tmp_path / "out")
    assert (row["problem"], row["target"], row["run"]) == ("level1/softmax", "cuda", "")


def test_the_card(harvested: Path) -> None:
    card = (harvested / "preference" / "README.md").read_text()
    assert card.startswith("---\nlicense: other\n")
    assert "`python -m search.harvest format=preference runs=" in card
    assert "Left out: exact duplicates " in card
    assert "| `rejected_rule` | string |" in card


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["format=nope", "out={new}"], "unknown format nope"),
        (["format=sff", "out={new}"], "did you mean sft?"),
        (["out={new}"], "format is not set"),
        (["format=sft"], "out is not set"),
        (["format=sft", "out={new}", "format.min_speedup=-1"], "format.min_speedup is -1"),
        (["format=sft", "out={here}"], "exists already"),
        (["format=sft", "out={new}", "runs={here}"], "no run was found below"),
        (["format=sft", "out={new}", "runs={here}/nowhere"], "nowhere is not a folder"),
        (["format=kernelbook", "out={new}", f"runs={RECORDING}"], "no row of format kernelbook (runs 1,"),
        (["format=sft", "out={new}", "splits.test=1"], "leave a share for training"),
        (["format=sft", "out={new}", "splits.test=x"], "splits.test is x; it must be a number"),
        (["format=sft", "out={new}", "duplicates.threshold=0"], "duplicates.threshold is 0"),
        (["format=sft", "out={new}", "decontaminate=kernelbunch"], "did you mean kernelbench?"),
        (["format=sft", "out={new}", "decontaminate.path={here}"], "no Python file with a class Model"),
        (["format=trajectory", "out={new}", "format.failed=1"], "must not be above 0"),
        (["format=sft", "out={new}", "licence=mit"], "did you mean license?"),
    ],
)
def test_invalid_input_is_a_one_line_error(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    places = {"here": tmp_path / "here", "new": tmp_path / "new"}
    assert call(*(argument.format(**places) for argument in arguments)) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("search.harvest:")]
    assert len(lines) == 1
    assert message in lines[0]
    assert not (tmp_path / "new").exists()
    assert list(tmp_path.iterdir()) == [tmp_path / "here"], "nothing half-written is left"


def test_jsonl_is_plain_json(harvested: Path) -> None:
    lines = (harvested / "sft" / "jsonl" / "train.jsonl").read_text().splitlines()
    assert all("reference" in json.loads(line) for line in lines)


@pytest.mark.parametrize("name", FORMATS)
def test_the_documentation_names_every_column(name: str, harvested: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "harvest.md").read_text()
    lines = [line for line in (harvested / name / "README.md").read_text().splitlines() if "| `" in line]
    assert len(lines) > 15
    assert not [line for line in lines if line not in page]
