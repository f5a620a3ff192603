"""Searches whose model answers in every style that real models have."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from search.proposers.llm.answers import read_ideas, read_kernel
from search.records.journal import replay
from search.records.run_state import rebuild
from search.run import __main__ as run
from tests.search.answering_styles import CODE_STYLES, DRAFT, IDEA_STYLES, KERNEL, StyledModel, some_ideas
from tests.search.models.providers.servers import OPENAI, ModelServer
from tests.search.run.test_run import SMALL, only_folder


@pytest.mark.parametrize("name", IDEA_STYLES)
@pytest.mark.parametrize("count", [1, 4])
def test_ideas_in_one_style(name: str, count: int) -> None:
    ideas = some_ideas(0, count)
    assert [each.text for each in read_ideas(IDEA_STYLES[name](ideas), [])] == [
        each["text"] for each in ideas
    ]


@pytest.mark.parametrize("name", CODE_STYLES)
def test_a_kernel_in_one_style(name: str) -> None:
    code = KERNEL.format(n=1)
    assert read_kernel(CODE_STYLES[name](code), DRAFT).source == code


def styled_search(folder: Path, model: StyledModel) -> Path:
    """A search on this CPU, with questions for ideas in every style; returns the run's folder."""
    with ModelServer(OPENAI, model) as server:
        status = run.main(
            [
                *SMALL,
                "proposer=llm",
                "llm=local",
                "llm.local.model=styled",
                f"llm.local.base_url={server.base_url}",
                "rounds=6",
                "ideas=3",
                "branch=1",
                f"out={folder / 'outputs'}",
            ]
        )
    assert status == 0
    return only_folder(folder)


@pytest.mark.slow
def test_nothing_that_a_person_could_read_is_lost(tmp_path: Path) -> None:
    model = StyledModel()
    state = rebuild(replay(styled_search(tmp_path, model) / "journal.jsonl"))
    assert set(model.used) >= {*IDEA_STYLES, *CODE_STYLES, "edits"}
    assert Counter(idea.text for idea in state.tree.ideas.values()) == Counter(model.ideas)
    variants = state.tree.variants.values()
    assert Counter(each.kernel.source for each in variants) == Counter(model.kernels)
    assert Counter(state.statuses) == {"correct": len(model.kernels)}
