"""The recorded searches that ship replay to the same tree: from the journal, and call by call."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf

from evaluators.records.evaluation import Status
from search.app.resuming import stored_config
from search.proposers.llm.proposer import LLMProposer
from search.recordings.archives import SUFFIX, unpacked
from search.recordings.verdicts import RecordedEvaluations
from search.records.journal import replay
from search.records.model_calls import Question
from search.records.run_state import RunState, rebuild
from search.run import __main__ as run
from tests.search.fakes import ScriptedModel, contents, search, state_of

ROOT = Path(__file__).parents[2]
JOURNALS = [
    path for root in ("tests/search", "search") for path in (ROOT / root).glob("recordings/*/journal.jsonl")
]
RECORDINGS = sorted(path.parent for path in JOURNALS)
PACKED = [
    archive
    for name in ("language_model", "transformer")
    for archive in sorted((ROOT / "search/recordings" / name).glob(f"*{SUFFIX}"))
]


def recorded(folder: Path) -> RunState:
    return rebuild(replay(folder / "journal.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("folder", RECORDINGS, ids=lambda path: path.name)
def test_a_recording_replays_to_the_same_tree(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one command, without a key, a network or a device."""
    arguments = ["proposer=replay", f"replay.run={folder}", "replay.evaluations=true", "wandb=off"]
    assert run.main([*arguments, f"out={tmp_path}"]) == 0
    assert "per minute" not in capsys.readouterr().out, "the verdicts were not made here"
    (journal,) = tmp_path.rglob("journal.jsonl")
    before, after = recorded(folder), recorded(journal.parent)
    assert contents(before.tree)["of"] == contents(after.tree)["of"]
    assert before.tree.variants == after.tree.variants
    assert before.finished is not None
    assert after.finished is not None
    assert before.finished.best == after.finished.best
    assert before.finished.confirmed == after.finished.confirmed


@pytest.mark.slow
@pytest.mark.parametrize("archive", PACKED, ids=lambda path: path.name)
def test_a_language_models_search_replays_to_what_was_measured(archive: Path, tmp_path: Path) -> None:
    """Also one that goes on: what it has no verdict on yet stays open."""
    asked = [
        "proposer=replay",
        f"replay.run={archive}",
        "replay.evaluations=true",
        "wandb=off",
        "report=false",
    ]
    assert run.main([*asked, f"out={tmp_path}"]) == 0
    (journal,) = tmp_path.rglob("journal.jsonl")
    before, after = recorded(unpacked(archive)), recorded(journal.parent)
    measured = {id: each for id, each in before.tree.variants.items() if each.evaluation}
    assert measured == {id: after.tree.variants[id] for id in measured}
    assert len(measured) >= 8
    assert before.tree.best() == after.tree.best()
    assert before.finished is not None
    assert after.finished is not None
    assert before.finished.best == after.finished.best
    assert before.finished.confirmed == after.finished.confirmed


@pytest.mark.slow
@pytest.mark.parametrize("folder", RECORDINGS, ids=lambda path: path.name)
def test_a_race_has_the_winner_of_the_recording(folder: Path, tmp_path: Path) -> None:
    arguments = ["proposer=replay", f"replay.run={folder}", "replay.evaluations=true", "wandb=off"]
    assert run.main([*arguments, "race=true", "report=false", f"out={tmp_path}"]) == 0
    (journal,) = tmp_path.rglob("journal.jsonl")
    before, after = recorded(folder), recorded(journal.parent)
    assert before.finished is not None
    assert after.finished is not None
    assert before.finished.best == after.finished.best
    assert before.finished.confirmed == after.finished.confirmed
    assert after.evaluations == before.evaluations
    assert after.statuses[Status.OUTPACED] > before.evaluations / 3


@pytest.mark.slow
@pytest.mark.parametrize("folder", RECORDINGS, ids=lambda path: path.name)
def test_what_the_config_of_an_earlier_run_names_is_there(folder: Path) -> None:
    targets = re.findall(
        r"_target_: (\S+)", OmegaConf.to_yaml(stored_config(folder, "resume", run.RunConfig))
    )
    assert len(targets) > 8
    assert all(callable(get_object(each)) for each in targets)


@pytest.mark.slow
def test_the_recorded_answers_make_the_same_search(tmp_path: Path) -> None:
    """Prompts may be worded in another way than when the search was recorded."""
    folder = ROOT / "tests/search/recordings/softmax_cpu"
    answers: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)

    def asked(purpose: str, about: str, prompt: str) -> tuple[str, ...]:
        return purpose, about, *re.findall(r"variant \d of \d", prompt)

    for line in (folder / "model_calls.jsonl").read_text().splitlines():
        call = json.loads(line)
        answers[asked(call["purpose"], call["about"], call["prompt"])].append(call["answer"])

    def answer(question: Question) -> str:
        return answers[asked(question.purpose, question.about, question.prompt)].pop(0)

    before = recorded(folder)
    assert before.started is not None
    model = ScriptedModel(answer, name="mailbox")
    search(
        tmp_path / "journal.jsonl",
        ideas=2,
        branch=2,
        keep=3,
        repairs=1,
        problem=before.started.problem,
        environment=before.started.environment,
        proposer=LLMProposer({"mailbox": model}, name="mailbox", reflection=False),
        evaluator=RecordedEvaluations(recorded(folder)),
        ranking=before.started.ranking,
    )
    after = state_of(tmp_path / "journal.jsonl")
    assert set(before.tree.ideas) == set(after.tree.ideas)
    assert before.tree.variants == after.tree.variants
    assert not any(answers.values()), "a recorded answer was not asked for"
