"""Searches whose model answers in every style that real models have."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from evaluators.rewards.completions import read_kernel
from search.harvest import __main__ as harvest
from search.proposers.llm.answers import read_ideas
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


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[StyledModel, Path]:
    """A search on this CPU, whose model answers in every style: the model, and the run's folder."""
    model, folder = StyledModel(), tmp_path_factory.mktemp("styles")
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
                "repairs=1",
                f"out={folder / 'outputs'}",
            ]
        )
    assert status == 0
    return model, only_folder(folder)


@pytest.mark.slow
def test_nothing_that_a_person_could_read_is_lost(searched: tuple[StyledModel, Path]) -> None:
    model, folder = searched
    state = rebuild(replay(folder / "journal.jsonl"))
    assert len(model.used.keys() & IDEA_STYLES.keys()) >= 10
    assert model.used.keys() > CODE_STYLES.keys()
    assert Counter(idea.text for idea in state.tree.ideas.values()) == Counter(model.ideas)
    variants = state.tree.variants.values()
    assert Counter(each.kernel.source for each in variants) == Counter(model.kernels)
    right = len(model.kernels) - model.failing
    assert Counter(state.statuses) == {"correct": right, "runtime_error": model.failing}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sft", "preference", "repair", "trajectory"])
def test_the_harvest_has_the_questions_as_they_were_asked(
    name: str, searched: tuple[StyledModel, Path], tmp_path: Path
) -> None:
    """And nothing of the machine that they come from."""
    model, folder = searched
    out, every = tmp_path / name, ["format.min_speedup=0"] * (name == "sft")
    assert harvest.main([f"format={name}", *every, f"out={out}", f"runs={folder}", "libraries=[]"]) == 0
    (written,) = (out / "jsonl").glob("*.jsonl")
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    steps = [step for row in rows for step in row.get("steps", [row]) if row.get("of") != "parent"]
    assert len(steps) >= model.failing > 0
    calls = [json.loads(line) for line in (folder / "model_calls.jsonl").read_text().splitlines()]
    asked = {(call["system"], call["prompt"]) for call in calls}
    assert all(step["asked"] for step in steps)
    assert {tuple(message["content"] for message in step["prompt"]) for step in steps} <= asked
    assert not re.search(r"/(root|home|tmp|usr|var|work)/|127\.0\.0\.1", written.read_text())
