"""Rows as conversations have a search's prompts, and answers that parse like a model's."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.rewards.completions import read_kernel
from kernel_library.catalogue.entry import Entry, Lineage, Measurement
from search.harvest.corpus import Corpus, read_runs, solutions_of
from search.harvest.format import Format
from search.harvest.formats.improvement import Improvement
from search.harvest.formats.preference import Preference
from search.harvest.formats.repair import Repair
from search.harvest.formats.sft import Sft
from search.harvest.formats.trajectory import Trajectory
from search.prompt import __main__ as prompt
from search.proposers.llm.answers import read_ideas
from search.recordings.verdicts import RECORDINGS
from search.records.journal import replay
from search.records.run_state import rebuild
from tests.search.harvest.story import Story, correct, kernel, problem

CONV2D = RECORDINGS / "conv2d_h200"
SOFTMAX = Path(__file__).parents[1] / "recordings" / "softmax_cpu"


def rows(format: Format, *folders: Path) -> list[dict[str, Any]]:
    corpus = Corpus(runs=read_runs(folders, "mit", lambda sequence, _: sequence))
    return [dict(row.values) for row in format.rows(corpus, Counter())]


def asked(*arguments: str) -> str:
    """What `ideatree prompt` prints."""
    with redirect_stdout(io.StringIO()) as shown:
        assert prompt.main(list(arguments)) == 0
    return shown.getvalue()


def text(messages: list[dict[str, str]]) -> str:
    assert [each["role"] for each in messages] == ["system", "user"]
    return "".join(each["content"] + "\n" for each in messages)


def recorded(folder: Path) -> set[str]:
    """The prompts that the run's model was asked."""
    calls = map(json.loads, (folder / "model_calls.jsonl").read_text().splitlines())
    return {f"{call['system']}\n{call['prompt']}\n" for call in calls}


@pytest.mark.slow
@pytest.mark.parametrize("format", [Sft(min_speedup=0), Improvement(), Repair(), Preference()])
def test_the_prompts_are_those_that_were_asked(format: Format) -> None:
    for folder in (CONV2D, SOFTMAX):
        of_code = [row for row in rows(format, folder) if row.get("of") != "parent"]
        assert all(row["asked"] for row in of_code)
        assert {text(row["prompt"]) for row in of_code} <= recorded(folder)


def test_a_trajectory_has_the_prompt_of_each_step() -> None:
    steps = [step for row in rows(Trajectory(), SOFTMAX) for step in row["steps"]]
    assert {text(step["prompt"]) for step in steps} <= recorded(SOFTMAX)
    assert any(step["repairs"] for step in steps)


@pytest.mark.slow
def test_what_no_model_was_asked_is_what_a_search_would_ask(tmp_path: Path) -> None:
    shutil.copytree(CONV2D, tmp_path / "run")
    (tmp_path / "run" / "model_calls.jsonl").unlink()
    variants = rebuild(replay(CONV2D / "journal.jsonl")).tree.variants
    row = rows(Sft(min_speedup=0), tmp_path)[0]
    assert not row["asked"]
    assert text(row["prompt"]) == asked(
        f"run={CONV2D}", f"idea={variants[row['variants'][0]].idea}", "branch=1"
    )


@pytest.mark.slow
def test_no_row_names_a_folder_of_a_machine() -> None:
    for format in (Sft(min_speedup=0), Repair(), Preference(), Trajectory()):
        for row in rows(format, CONV2D, SOFTMAX):
            assert not re.search(r"/(root|home|tmp|usr|work)/", json.dumps(row)), format.name


@pytest.mark.slow
@pytest.mark.parametrize("format", [Sft(min_speedup=0), Improvement(), Repair()])
def test_the_completion_is_the_kernel(format: Format) -> None:
    column = {"sft": "kernel", "improvement": "after", "repair": "fixed"}[format.name]
    for row in rows(format, CONV2D, SOFTMAX):
        (answer,) = row["completion"]
        assert answer["role"] == "assistant"
        assert row["messages"] == [*row["prompt"], answer]
        read = read_kernel(answer["content"])
        assert (read.source.strip(), read.language) == (row[column].strip(), row["language"])


@pytest.mark.slow
def test_a_preference_is_between_kernels_or_between_ideas() -> None:
    found = rows(Preference(), CONV2D, SOFTMAX)
    tree = {each.name: rebuild(replay(each / "journal.jsonl")).tree for each in (CONV2D, SOFTMAX)}
    assert {row["of"] for row in found} == {"idea", "parent"}
    for row in found:
        for side, variant in zip(("chosen", "rejected"), row["variants"], strict=True):
            (answer,) = row[side]
            assert answer["role"] == "assistant"
            if row["of"] == "idea":
                assert read_kernel(answer["content"]).source.strip() == row[f"{side}_kernel"].strip()
                assert row["chosen_idea"] in text(row["prompt"])
                continue
            idea = tree[row["run"]].ideas[tree[row["run"]].variants[variant].idea]
            (stated,) = read_ideas(answer["content"], [idea.builds_on])
            assert (stated.text, stated.category) == (row[f"{side}_idea"], idea.category)
            assert "Propose 1 optimisation idea." in text(row["prompt"])
            assert idea.text not in text(row["prompt"]), "the prompt would contain the answer"


def test_the_prompt_for_an_idea_shows_the_common_history(tmp_path: Path) -> None:
    story = Story(tmp_path / "run", problem("relu"))
    first, second = story.idea("the first"), story.idea("the second")
    story.variant(first, kernel("a"), correct(1.1))
    story.variant(second, kernel("b"), correct(1.2))
    later = replace(first, text="one", round=2, known_ideas=(first.id, second.id))
    other = replace(first, text="other", round=2, known_ideas=(first.id,))
    for idea, name, speedup in ((later, "c", 3.0), (other, "d", 2.0)):
        story.add(idea)
        story.variant(idea, kernel(name), correct(speedup))
    pairs = [row for row in rows(Preference(), tmp_path) if row["of"] == "parent"]
    (pair,) = [row for row in pairs if (row["chosen_idea"], row["rejected_idea"]) == ("one", "other")]
    assert "the first" in text(pair["prompt"])
    assert "the second" not in text(pair["prompt"])


def test_a_library_entrys_ideas_are_joined_in_one_prompt() -> None:
    relu, measured = problem("relu"), correct(2.0)
    start = Entry(kernel=kernel("a"), measurements=(Measurement(problem=relu, evaluation=measured),))
    lineage = Lineage(start=start.id, ideas=("tile it", "fuse it"))
    entry = replace(start, kernel=kernel("b"), lineage=lineage)
    corpus = Corpus(runs=[], from_library=solutions_of([start, entry], [], "mit"))
    plain, built = (dict(row.values) for row in Sft().rows(corpus, Counter()))
    assert "> tile it; then fuse it" in text(built["prompt"])
    assert start.kernel.source in text(built["prompt"])
    assert "> Make it as fast as this device can." in text(plain["prompt"])
    assert read_source(plain) == start.kernel.source.strip()


def read_source(row: dict[str, Any]) -> str:
    return str(row["completion"][0]["content"].removeprefix("```python\n").removesuffix("\n```"))
