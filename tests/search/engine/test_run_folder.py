from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel
from search.app.run_folders import RUN_FOLDER
from search.engine.run_folder import RunFolder, finalise, summarise
from search.records.events import IdeaProposed, ModelCalled, RunFinished, RunStarted, VariantWritten
from search.records.journal import replay
from search.records.model_calls import Cause, ModelCall, Purpose, Usage
from search.records.run_state import RunState, rebuild
from search.records.tree import MOST_CHARACTERS, Idea
from tests.search.fakes import FakeEvaluator, FakeProposer, correct, failed, search, state_of

FIELDS = ["problem", "device", "rounds", "evaluations", "statuses", "baselines_ms", "best", "cost", "time"]
BEST = [
    "variant",
    "idea",
    "round",
    "kernel_ms",
    "speedup",
    "speedup_low",
    "speedup_high",
    "speedup_vs_compile",
    "confirmed",
    "not_confirmed",
]


def run(folder: Path, **parts: Any) -> tuple[RunState, dict[str, Any]]:
    path = folder / "journal.jsonl"
    past = replay(path) if path.exists() else []
    search(path, observers=[RunFolder(folder, past)], **parts)
    state = state_of(path)
    summary = finalise(folder, state)
    assert json.loads((folder / "summary.json").read_text()) == summary
    return state, summary


def test_a_run_leaves_its_kernels_its_winner_and_its_figures(tmp_path: Path) -> None:
    state, summary = run(tmp_path, environment={"device": "NVIDIA H200"}, comparisons=0)
    assert {path.stem for path in (tmp_path / "variants").iterdir()} == set(state.tree.variants)
    for id, variant in state.tree.variants.items():
        text = (tmp_path / "variants" / f"{id}.py").read_text()
        header, source = text[: -len(variant.kernel.source)], text[-len(variant.kernel.source) :]
        assert source == variant.kernel.source
        assert all(line.startswith("# ") for line in header.splitlines())
        assert "level1/fake" in header
        assert variant.idea in header
    assert list(summary) == FIELDS
    assert list(summary["best"]) == BEST
    assert list(summary["time"]) == ["build_s", "waited_s", "stages_s", "devices"]
    assert list(summary["baselines_ms"]) == ["eager", "compile"]
    assert summary["device"] == "NVIDIA H200"
    assert summary["rounds"] == 3
    assert sum(summary["statuses"].values()) == summary["evaluations"] == 36
    best = state.tree.best()[0]
    assert summary["best"]["variant"] == best.id
    assert summary["best"]["idea"] == state.tree.ideas[best.idea].text
    assert (tmp_path / "best.py").read_text().endswith(best.kernel.source)
    cost = summary["cost"]
    figures = ["calls", "failed_calls", "estimated_calls", "tokens", "dollars"]
    assert list(cost) == [*figures, "models", "gpu_s", "wall_s"]
    assert (cost["calls"], cost["tokens"], cost["dollars"], cost["models"]) == (0, 0, 0, {})
    measured_s = 0.25 * (summary["statuses"]["correct"] + 1)  # and the winner once more
    assert cost["gpu_s"] == pytest.approx(measured_s + state.compared_s)
    assert cost["wall_s"] > 0


def test_the_figures_are_those_of_the_confirmation(tmp_path: Path) -> None:
    _, summary = run(tmp_path, evaluator=FakeEvaluator(thorough=lambda kernel: correct(1.5)))
    best, timing = summary["best"], correct(1.5).timing
    assert timing is not None
    assert (best["speedup"], best["kernel_ms"]) == (1.5, timing.kernel_ms)
    assert best["speedup_vs_compile"] == pytest.approx(1.2)
    assert summary["baselines_ms"] == {"eager": timing.eager_ms, "compile": timing.compile_ms}


@pytest.mark.parametrize(
    "evaluator",
    [
        FakeEvaluator(verdict=lambda kernel: failed(Status.TIMEOUT)),
        FakeEvaluator(thorough=lambda kernel: failed(Status.INCORRECT)),
    ],
)
def test_without_a_confirmed_kernel_there_is_no_best(tmp_path: Path, evaluator: FakeEvaluator) -> None:
    _, summary = run(tmp_path, evaluator=evaluator)
    assert summary["best"] is None
    assert summary["baselines_ms"] == {"eager": None, "compile": None}
    assert not (tmp_path / "best.py").exists()


def test_a_kernel_is_written_once(tmp_path: Path) -> None:
    search(tmp_path / "journal.jsonl", rounds=1)
    events = replay(tmp_path / "journal.jsonl")
    RunFolder(tmp_path, events)
    written = sorted((tmp_path / "variants").iterdir())
    written[0].write_text("as it was")
    written[1].unlink()
    RunFolder(tmp_path, events)
    assert written[0].read_text() == "as it was"
    assert written[1].exists()


def test_a_resumed_run_completes_its_folder(tmp_path: Path) -> None:
    run(tmp_path, rounds=1)
    state, summary = run(tmp_path, rounds=2)
    assert {path.stem for path in (tmp_path / "variants").iterdir()} == set(state.tree.variants)
    assert summary["rounds"] == 2


def test_an_unfinished_run_is_summed_up_too(tmp_path: Path) -> None:
    search(tmp_path / "journal.jsonl")
    state = rebuild(e for e in replay(tmp_path / "journal.jsonl") if not isinstance(e, RunFinished))
    assert summarise(state)["best"]["speedup"] == state.tree.best()[0].evaluation.speedup  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="not started"):
        summarise(RunState())
    with pytest.raises(ValueError, match="run_started"):
        finalise(tmp_path, RunState())


class Ensemble(FakeProposer):
    """Ideas of one model and of another, in turn; its first kernels are all broken."""

    async def propose(self, *args: Any) -> Any:
        ideas = await super().propose(*args)
        return [replace(idea, model=("a/one", "b/two")[i % 2]) for i, idea in enumerate(ideas)]


def made(number: int, model: str, dollars: float, cause: Cause | None = None) -> ModelCalled:
    usage = Usage(input_tokens=1000, output_tokens=number)
    about: dict[str, Any] = {"purpose": Purpose.IDEAS, "about": "", "attempt": 1, "seconds": 1.0}
    call = ModelCall(id=str(number), model=model, usage=usage, dollars=dollars, cause=cause, **about)
    return ModelCalled(at_s=0.0, call=call)


def test_the_models_and_what_they_cost(tmp_path: Path) -> None:
    def verdict(kernel: Kernel) -> Evaluation:
        return correct() if "repaired" in kernel.source else failed(Status.COMPILE_ERROR)

    state, summary = run(
        tmp_path, rounds=1, ideas=3, repairs=1, proposer=Ensemble(), evaluator=FakeEvaluator(verdict=verdict)
    )
    two = {"calls": 0, "tokens": 0, "dollars": 0, "ideas": 1}
    assert summary["cost"]["models"] == {"a/one": {**two, "ideas": 2}, "b/two": two}

    for id, variant in state.tree.variants.items():
        text = " ".join((tmp_path / "variants" / f"{id}.py").read_text().split("class")[0].split("\n# "))
        idea = state.tree.ideas[variant.idea]
        assert f"Idea {idea.id}, by {idea.model}, round 1" in text
        assert (f"Variant {id} (repairs {variant.repairs}) of" in text) == bool(variant.repairs)
    best = state.tree.best()[0]
    assert best.repairs
    header = " ".join((tmp_path / "best.py").read_text().split("class")[0].split("\n# "))
    assert f"variant {best.id} (repairs {best.repairs})" in header
    assert state.tree.ideas[best.idea].model in header

    for event in (
        made(1, "a/one", 0.1),
        made(2, "a/one", 0.2),
        made(3, "c/three", 0.0, Cause.DENIED),
    ):
        state.apply(event)
    cost = summarise(state)["cost"]
    assert (cost["calls"], cost["failed_calls"], cost["tokens"], cost["dollars"]) == (3, 1, 3006, 0.3)
    assert cost["models"] == {
        "a/one": {"calls": 2, "tokens": 2003, "dollars": 0.3, "ideas": 2},
        "b/two": two,
        "c/three": {"calls": 1, "tokens": 1003, "dollars": 0, "ideas": 0},
    }


class Multiline(FakeProposer):
    """An idea of several lines, and a kernel that only runs if its first statement stays the first."""

    async def propose(self, *args: Any) -> Any:
        ideas = await super().propose(*args)
        return [replace(idea, text=f'{idea.text}\nimport os"""\n' + "word " * 60) for idea in ideas]

    async def implement(self, *args: Any) -> Any:
        source = '"""A kernel."""\nfrom __future__ import annotations\nclass ModelNew: ...\nprint(__doc__)\n'
        yield Kernel(source=source, language="triton")


def test_kernels_run_by_themselves_no_matter_what_the_idea_says(tmp_path: Path) -> None:
    def verdict(kernel: Kernel) -> Evaluation:
        return correct()

    run(tmp_path, rounds=1, ideas=1, proposer=Multiline(), evaluator=FakeEvaluator(verdict=verdict))
    for path in (*(tmp_path / "variants").iterdir(), tmp_path / "best.py"):
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
        assert done.stdout == "A kernel.\n"
        assert all(len(line) <= 110 for line in path.read_text().splitlines())


def test_events_are_enough_for_the_folder(tmp_path: Path) -> None:
    search(tmp_path / "journal.jsonl", rounds=1)
    needed = (RunStarted, IdeaProposed, VariantWritten)
    RunFolder(tmp_path, [e for e in replay(tmp_path / "journal.jsonl") if isinstance(e, needed)])
    assert len(list((tmp_path / "variants").iterdir())) == 12


@pytest.mark.parametrize(
    "problem", [{"name": "operators/opinfo/aten.relu.default"}, {"name": "x", "path": None}]
)
def test_a_problem_without_a_file_has_a_run_folder_too(problem: dict[str, Any]) -> None:
    config = OmegaConf.create({"problem": problem, "out": "outputs", "dir": RUN_FOLDER["run"]["dir"]})
    assert str(config.dir).startswith(f"outputs/{problem['name']}/")


class OddIdeas(FakeProposer):
    """Ideas with texts that a model may well write."""

    texts = (
        "Use delta encoding: store differences",
        "a\x00b \x1b[31mred\x1b[0m \u202eleft",
        "a lone \udc80 surrogate\nand a second line",
        "very long " * 20_000,
    )

    async def propose(self, *arguments: Any) -> list[Idea]:
        found = await super().propose(*arguments)
        return [replace(idea, text=text, expected=text) for idea, text in zip(found, self.texts, strict=True)]


def test_no_idea_breaks_a_saved_kernel_or_fills_later_prompts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state, summary = run(tmp_path, proposer=OddIdeas(), rounds=1)
    assert len(state.tree.ideas) == 4
    for file in [*(tmp_path / "variants").iterdir(), tmp_path / "best.py"]:
        data = file.read_bytes()
        compile(data, file.name, "exec")
        assert data.decode().replace("\n", "").isprintable()
    texts = [text for idea in state.tree.ideas.values() for text in (idea.text, idea.expected)]
    assert max(map(len, texts)) == MOST_CHARACTERS
    assert all(text.replace("\n", "").isprintable() for text in texts)
    assert "\nand a second line" in texts[4]
    said = "its text has 200,000 characters, more than 2,000; state it in one or two sentences"
    assert f"an idea of fake is cut: {said}" in caplog.text
    assert summary["evaluations"]


def test_the_kernels_of_an_older_run_are_written_too(tmp_path: Path) -> None:
    """Its journal has texts as they came."""
    path = tmp_path / "journal.jsonl"
    search(path, rounds=1)
    lines = []
    for line in path.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "idea_proposed":
            event["idea"]["model"] = "a\x00 model \udc80 with coding: x"
        lines.append(json.dumps(event))
    path.write_text("\n".join(lines) + "\n")
    RunFolder(tmp_path, replay(path))
    finalise(tmp_path, state_of(path))
    for file in [*(tmp_path / "variants").iterdir(), tmp_path / "best.py"]:
        compile(file.read_bytes(), file.name, "exec")
