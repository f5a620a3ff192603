"""Rows as conversations have a search's prompts, and answers that parse like a model's."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernel_library.catalogue.entry import Entry, Lineage, Measurement
from search.harvest.corpus import Corpus, read_runs, solutions_of
from search.harvest.format import Format
from search.harvest.formats.improvement import Improvement
from search.harvest.formats.preference import Preference
from search.harvest.formats.repair import Repair
from search.harvest.formats.sft import Sft
from search.prompt import __main__ as prompt
from search.proposers.llm.answers import read_ideas, read_kernel
from search.recordings.verdicts import RECORDINGS
from search.records.journal import replay
from search.records.run_state import rebuild
from tests.search.harvest.story import Story, correct, kernel, problem

CONV2D = RECORDINGS / "conv2d_h200"
SOFTMAX = Path(__file__).parents[1] / "recordings" / "softmax_cpu"


def rows(format: Format, *folders: Path) -> list[dict[str, Any]]:
    corpus = Corpus(runs=read_runs(folders, "mit", lambda sequence, _: sequence))
    return [dict(row.values) for row in format.rows(corpus)]


def asked(*arguments: str) -> str:
    """What `ideatree prompt` prints."""
    with redirect_stdout(io.StringIO()) as shown:
        assert prompt.main(list(arguments)) == 0
    return shown.getvalue()


def text(messages: list[dict[str, str]]) -> str:
    assert [each["role"] for each in messages] == ["system", "user"]
    return "".join(each["content"] + "\n" for each in messages)


@pytest.mark.slow
def test_the_prompt_for_code_is_that_of_a_search() -> None:
    ideas = rebuild(replay(CONV2D / "journal.jsonl")).tree.variants
    found = rows(Sft(), CONV2D)
    prompts = {ideas[row["variants"][0]].idea: text(row["prompt"]) for row in found}
    assert len(prompts) >= 12
    for idea, own in list(prompts.items())[::3]:
        assert own == asked(f"run={CONV2D}", f"idea={idea}", "branch=1")
    assert any("# The kernel to start from" in own for own in prompts.values())
    assert all(
        row["prompt"] == other["prompt"]
        for row in rows(Improvement(), CONV2D)
        for other in found
        if other["kernel"] == row["after"] and other["idea"] == row["idea"]
    )


@pytest.mark.slow
def test_the_prompt_for_a_repair_is_that_of_a_search() -> None:
    found = rows(Repair(), SOFTMAX)
    for row in found:
        assert text(row["prompt"]) == asked(f"run={SOFTMAX}", f"variant={row['variants'][1]}")
    assert found


@pytest.mark.parametrize("format", [Sft(min_speedup=0), Improvement(), Repair()])
def test_the_completion_is_the_kernel(format: Format) -> None:
    column = {"sft": "kernel", "improvement": "after", "repair": "fixed"}[format.name]
    for row in rows(format, CONV2D, SOFTMAX):
        (answer,) = row["completion"]
        assert answer["role"] == "assistant"
        assert row["messages"] == [*row["prompt"], answer]
        read = read_kernel(answer["content"])
        assert (read.source.strip(), read.language) == (row[column].strip(), row["language"])


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
    plain, built = (dict(row.values) for row in Sft().rows(corpus))
    assert "> tile it; then fuse it" in text(built["prompt"])
    assert start.kernel.source in text(built["prompt"])
    assert "> Make it as fast as this device can." in text(plain["prompt"])
    assert read_source(plain) == start.kernel.source.strip()


def read_source(row: dict[str, Any]) -> str:
    return str(row["completion"][0]["content"].removeprefix("```python\n").removesuffix("\n```"))
