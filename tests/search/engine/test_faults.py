"""A fault of a plug-in ends the search with status 1, a traceback in the log and a line that names it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem
from kernel_library.catalogue.entry import Entry
from search.engine.faults import PlugIn, fault, naming
from search.engine.session import Session
from search.protocols import RunContext, View
from search.records.journal import Journal
from search.records.tree import Expansion, Idea, Outcome, Seed, Variant
from search.strategies.idea_branching import IdeaBranching
from tests.search.engine.test_engine_library import FakeLibrary, hit
from tests.search.fakes import FakeEvaluator, FakeProposer, build, search, state_of


def trip() -> Any:
    """Fails as the code of others does, not as a check of a value would."""
    a, b = [1]  # type: ignore[misc]
    return a, b


class TrippingStrategy:
    ideas = 2

    def __init__(self, *, synchronous: bool, at: int = 1) -> None:
        self.synchronous, self.at = synchronous, at

    def ask(self, view: View, rng: random.Random) -> Expansion | None:
        if view.round >= self.at:
            trip()
        return Expansion(seed=None, ideas=2, variants=1)


class Borrowed(IdeaBranching):
    """The method that fails belongs to the class that it comes from."""

    def ask(self, view: View, rng: random.Random) -> Expansion | None:
        return super().ask(None, rng)  # type: ignore[arg-type]


class TrippingProposer(FakeProposer):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def _at(self, where: str) -> None:
        if where == self.where:
            trip()

    def extends(self, problem: Problem, kernel: Kernel) -> bool:
        self._at("extends")
        return True

    def begin(self, run: RunContext) -> None:
        self._at("begin")
        super().begin(run)

    async def close(self) -> None:
        await super().close()
        self._at("close")

    async def propose(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], rng: random.Random
    ) -> list[Idea]:
        self._at("propose")
        if self.where == "no list":
            return None  # type: ignore[return-value]
        return await super().propose(problem, expansion, history, rng)

    async def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        self._at("implement")
        async for each in super().implement(problem, idea, parent, n, written, rng):
            yield each

    async def repair(
        self, problem: Problem, idea: Idea, failed: Variant, rng: random.Random
    ) -> Kernel | None:
        return trip()


class TrippingEvaluator(FakeEvaluator):
    async def evaluate(self, *arguments: Any, **options: Any) -> Evaluation:
        return trip()


class TrippingLibrary(FakeLibrary):
    def refusal(self, entry: Entry) -> str | None:
        return trip()


class WrongStrategy(TrippingStrategy):
    def ask(self, view: View, rng: random.Random) -> Expansion | None:
        return [None]  # type: ignore[return-value]


UNPACKED = "ValueError: not enough values to unpack (expected 2, got 1)"


@pytest.mark.parametrize(
    ("part", "said"),
    [
        *(
            (
                {"strategy": TrippingStrategy(synchronous=how)},
                f"strategy TrippingStrategy ({__name__}): {UNPACKED}",
            )
            for how in (True, False)
        ),
        (
            {"strategy": TrippingStrategy(synchronous=True, at=2)},
            f"strategy TrippingStrategy ({__name__}): {UNPACKED}",
        ),
        (
            {"strategy": Borrowed(ideas=2, branch=1, keep=1)},
            f"strategy Borrowed ({__name__}): AttributeError: ",
        ),
        *(
            (
                {"strategy": WrongStrategy(synchronous=how)},
                "strategy WrongStrategy returned [None], not an",
            )
            for how in (True, False)
        ),
        *(
            ({"proposer": TrippingProposer(where)}, f"proposer TrippingProposer ({__name__}): {UNPACKED}")
            for where in ("begin", "extends", "propose", "implement", "close")
        ),
        (
            {"proposer": TrippingProposer("repair"), "repairs": 1},
            f"proposer TrippingProposer ({__name__}): {UNPACKED}",
        ),
        (
            {"proposer": TrippingProposer("no list")},
            "proposer TrippingProposer returned None, not a list of ideas",
        ),
        ({"evaluator": TrippingEvaluator()}, f"evaluator TrippingEvaluator ({__name__}): {UNPACKED}"),
        ({"library": TrippingLibrary()}, f"library TrippingLibrary ({__name__}): {UNPACKED}"),
    ],
)
def test_a_plug_in_that_fails_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, part: dict[str, Any], said: str
) -> None:
    path = tmp_path / "journal.jsonl"
    finished = search(path, **part)
    assert finished.reason.startswith("error: ")
    assert said in finished.reason
    assert state_of(path).finished == finished
    assert "Traceback" in caplog.text


class LookingNowhere(FakeLibrary):
    def lookup(self, *arguments: Any) -> Any:
        return trip()


def test_a_library_that_fails_before_the_start_is_named_below_the_traceback(tmp_path: Path) -> None:
    library = LookingNowhere()
    with (
        pytest.raises(ValueError, match="not enough values") as failed,
        naming([PlugIn(kind="library", name="LookingNowhere", module=__name__)]),
    ):
        search(tmp_path / "journal.jsonl", library=library)
    assert failed.value.__notes__ == [f"library LookingNowhere ({__name__}) failed"]


def test_the_innermost_plug_in_is_at_fault(tmp_path: Path) -> None:
    """A proposer that calls a model provider is innocent of the provider's faults."""
    provider = PlugIn(kind="model provider", name="TrippingLibrary", module=__name__)
    proposer = PlugIn(kind="proposer", name="TrippingProposer", module=__name__)
    with pytest.raises(ValueError) as failed:
        TrippingLibrary().refusal(hit("a", 2.0).entry)
    assert fault(failed.value, [proposer, provider]).startswith(f"{provider}: ValueError: ")
    assert fault(failed.value, [proposer]).startswith(f"{proposer}: "), "a function of its module"
    assert fault(failed.value).startswith("ValueError: not enough values")


def test_the_disk_is_no_plug_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A full disk is one line: the journal, what is wrong, and no traceback."""
    with Journal(tmp_path / "journal.jsonl") as journal:
        engine = build(journal)
        session: Session = engine.session
        session.work.fail("evaluate variant a", OSError(28, "No space left on device", str(journal.path)))
        assert session.work.stop == f"error: evaluate variant a: {journal.path}: No space left on device"
    assert "Traceback" not in caplog.text
