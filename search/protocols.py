"""The protocols between the engine and its parts: strategies, proposers, evaluators, libraries, observers.

Implementations live in `strategies/`, `proposers/`, `observers/` and so on. Each protocol has one contract
test suite that every implementation runs.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from evaluators.records.diagnosis import Diagnosis
from evaluators.records.evaluation import Evaluation
from evaluators.records.probe import Probe
from evaluators.records.problem import Kernel, Problem
from evaluators.records.race import Threshold
from kernel_library.catalogue.entry import Entry, Hit
from search.models.client import ModelClient
from search.records.events import Event
from search.records.probe_request import ProbeRequest
from search.records.run_state import RunState
from search.records.tree import Expansion, Idea, Outcome, Reflection, Seed, Tree, Variant


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What a proposer may know about the run that it works for.

    Attributes:
        problem: The problem that the run searches.
        folder: The run's folder.
        state: The run's live state. It changes as the run proceeds; proposers only read it.
        entries: The library kernels that the run started with.
        facts: Facts about the device and its software.
        model_client: Calls language models within the run's budget and records each call.
    """

    problem: Problem
    folder: Path
    state: RunState
    entries: Sequence[Seed]
    facts: Mapping[str, str]
    model_client: ModelClient
    history: str = "all"
    """How earlier ideas are shown, see `search.records.tree.shown_history`."""
    probes: int = 0
    """The probes that may be asked for in a round."""


class ProposerFailed(Exception):
    """The proposer cannot continue the run. The message gives the reason in one line."""


class NoUsableAnswer(ProposerFailed):
    """No model gave a usable answer to one question for ideas. Other questions may fare better."""


@dataclass(frozen=True, kw_only=True)
class View:
    """What a strategy sees when it is asked for the next expansion.

    Attributes:
        tree: For a `synchronous` strategy, the closed rounds only, so that the order in which work finishes
            does not matter. Otherwise everything so far, including ideas and variants without a verdict.
        entries: The library's kernels for the problem that the proposer can build on.
        pending: The expansions whose verdicts are not all in `tree`, oldest first. For a synchronous
            strategy these are the expansions of the open round.
        round: The number of the open round, from 1.
        left: The number of ideas of the open round that have not been requested yet.
        exhausted: Ids of the kernels ("" for the reference) for which the proposer has no new idea: it
            returned none when last asked, or reports so itself. A synchronous strategy sees closed rounds
            only. A strategy skips these kernels while others are left.
    """

    tree: Tree
    entries: Sequence[Seed] = ()
    pending: Sequence[Expansion] = ()
    round: int = 1
    left: int = 1
    exhausted: frozenset[str] = frozenset()


class Strategy(Protocol):
    """The tree-search policy: which seed to expand next, and how widely.

    The engine asks it whenever there is room for more work, until the round's `ideas` have been requested.

    Attributes:
        ideas: Ideas per round. Without synchronous rounds, a round is only a unit of reporting.
        synchronous: Whether the strategy sees closed rounds only, so that each round waits for the last
            verdict of the round before. Otherwise it is asked again while work is in flight.
    """

    ideas: int
    synchronous: bool

    def ask(self, view: View, rng: random.Random) -> Expansion | None:
        """Chooses the next expansion.

        The function is pure: equal arguments give equal answers, and it changes nothing.

        Args:
            view: The search so far.
            rng: The random generator for this question.

        Returns:
            The expansion, with at most `view.left` ideas, or None to wait until work in flight has ended
            or the round has closed.
        """
        ...


@runtime_checkable
class SetsThreshold(Protocol):
    """A strategy without synchronous rounds that says what a race may leave out. Without it, every kernel is
    judged in full."""

    def threshold(self, view: View) -> float:
        """Returns the speedup over eager that a new kernel must be able to reach to become a seed or the best
        of the search; 0 if any correct one may. It must not be above the lower end of the best kernel's
        interval. Pure, like `ask`."""
        ...


def ask(strategy: Strategy, view: View, rng: random.Random) -> Expansion | None:
    """The strategy's answer. Raises TypeError if it is no expansion."""
    answer: object = strategy.ask(view, rng)
    if isinstance(answer, Expansion | None):
        return answer
    raise TypeError(f"strategy {type(strategy).__name__} returned {answer!r:.60}, not an Expansion or None")


def expansions_of_a_round(
    strategy: Strategy, view: View, rng_of: Callable[[int], random.Random]
) -> list[Expansion]:
    """Asks a strategy for a whole round at once: until it returns None or the round's ideas are used up.

    `rng_of` gives the random generator of each question, counted from 0.
    """
    chosen: list[Expansion] = []
    while (left := strategy.ideas - sum(each.ideas for each in chosen)) > 0:
        asked = ask(strategy, replace(view, pending=tuple(chosen), left=left), rng_of(len(chosen)))
        if asked is None:
            break
        chosen.append(asked)
    return chosen


class Proposer(Protocol):
    """Proposes the ideas and writes the code: a language model, the playbook, a recording or an agent."""

    def refusal(self, problem: Problem) -> str | None:
        """Returns in one line why it cannot work on the problem and what would help; None if it can."""
        ...

    def extends(self, problem: Problem, kernel: Kernel) -> bool:
        """Returns whether it can build on the kernel. Other kernels are measured but never become seeds."""
        ...

    def begin(self, run: RunContext) -> None:
        """Called once, when a run starts or resumes, before any other request."""
        ...

    async def close(self) -> None:
        """Called once, when the run ends, also after an error."""
        ...

    async def propose(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], rng: random.Random
    ) -> list[Idea]:
        """Proposes new ideas for a seed.

        Args:
            problem: The problem to make faster.
            expansion: The seed and the number of ideas wanted.
            history: The earlier ideas and their results; ideas of the same round, not yet evaluated, come
                last. Empty if the run's `history` is "none".
            rng: The random generator for this question.

        Returns:
            At most `expansion.ideas` ideas; fewer, or none, when the proposer has no more. The engine sets
            each idea's `round` and `parent`.

        Raises:
            BudgetSpent: If a limit leaves no room for a model call.
            NoUsableAnswer: If this expansion gets no ideas, while others may.
            ProposerFailed: If the proposer cannot continue the run.
        """
        ...

    def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        """Writes kernels for an idea and yields each as soon as it is written.

        Args:
            problem: The problem to make faster.
            idea: The idea to implement.
            parent: The kernel that the idea starts from; None for the reference.
            n: The number of kernels wanted in all, including those already `written`.
            written: Kernels that an earlier process of the same run wrote for the idea.
            rng: The random generator for this idea. Equal arguments begin with the same kernels.

        Raises:
            BudgetSpent: If a limit leaves no room for a model call.
            ProposerFailed: If the proposer cannot continue the run. A resumed run asks for what is missing.
        """
        ...

    async def repair(
        self, problem: Problem, idea: Idea, failed: Variant, rng: random.Random
    ) -> Kernel | None:
        """Fixes a failed variant with the help of its evaluation's log; returns None if it cannot.

        Raises:
            BudgetSpent: If a limit leaves no room for a model call.
            ProposerFailed: If the proposer cannot continue the run.
        """
        ...


@runtime_checkable
class ReportsExhaustion(Protocol):
    """A proposer that knows, before it is asked, for which kernels it has no more ideas."""

    def exhausted(self, tree: Tree) -> frozenset[str]:
        """Returns the ids of the kernels ("" for the reference) for which all its ideas are in the tree."""
        ...


@runtime_checkable
class Reflects(Protocol):
    """A proposer that puts into words what the measurements of a closed round mean for its hypotheses."""

    async def reflect(self, problem: Problem, round: int) -> Reflection | None:
        """Reflects on a closed round, before ideas of the next one are asked for.

        Returns:
            The reflection; None if it has nothing to say, cannot, or the budget has too little room. The
            search continues in any case.
        """
        ...


@runtime_checkable
class WritesInWaves(Protocol):
    """A proposer that writes the variants of an idea a few at a time. It is asked again, with the variants
    `written` so far, once all of them have verdicts. Repairs are not waited for.

    Attributes:
        wave: The number of variants that `implement` yields each time; 0: all of them at once.
    """

    wave: int


@runtime_checkable
class HasOwnEvaluator(Protocol):
    """A proposer with its own evaluator, because its kernels are recorded or invented.

    Attributes:
        evaluator: Gives the verdicts on the proposer's kernels; no device is used.
        entries: The kernels that a search starts with, in place of the library's.
    """

    evaluator: KernelEvaluator
    entries: Sequence[Seed]


class KernelEvaluator(Protocol):
    """Builds, checks and times kernels. `evaluators.scheduler.pool.Pool` does so on real devices."""

    async def describe(self, problem: Problem) -> dict[str, str]:
        """Returns the device and software that will measure the problem.

        Raises:
            WorkerBroken: If the problem cannot be run there.
        """
        ...

    async def evaluate(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        thorough: bool = False,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """Evaluates a kernel. A kernel's failure is a status of the result, never an exception.

        Args:
            problem: The problem that the kernel solves.
            kernel: The kernel to judge.
            thorough: Measure longer, in a new process with new inputs, and time `torch.compile` too.
            on_stage: Called with "building", "measuring" and the steps of the measurement as each begins, or
                with "waiting" if the kernel waits for another machine.
        """
        ...

    async def compare(self, problem: Problem, kernels: Sequence[Kernel]) -> list[Evaluation]:
        """Measures 2 to 6 different kernels against one another, in alternating blocks of one session.

        A kernel's failure is a status of its result, never an exception. If the session itself fails, every
        kernel gets that status.

        Returns:
            One evaluation per kernel, in the same order. Timing samples with the same index belong to the
            same turn of the session.
        """
        ...


@runtime_checkable
class RacingEvaluator(Protocol):
    """An evaluator that can judge in two stages. `evaluators.scheduler.pool.Pool` can."""

    async def race(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        threshold: Threshold,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """Judges a kernel quickly, and in full if it may reach the threshold.

        Args:
            problem: The problem that the kernel solves.
            kernel: The kernel to judge.
            threshold: The speedup to reach; see `evaluators.records.race.Threshold`.
            on_stage: See `KernelEvaluator.evaluate`.

        Returns:
            The verdict of the full stage or, if there was none, that of the quick stage, which is never
            `correct`.
        """
        ...


@runtime_checkable
class TimesCompanions(Protocol):
    """An evaluator that times a kernel together with others when it evaluates it.
    `evaluators.scheduler.pool.Pool` does."""

    async def evaluate_beside(
        self,
        problem: Problem,
        kernel: Kernel,
        companions: Sequence[Kernel],
        *,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """As `KernelEvaluator.evaluate`; then times a correct kernel in alternating blocks with its
        companions, for `Evaluation.paired`."""
        ...


class Diagnoser(Protocol):
    """Profiles kernels between rounds, when the search measures nothing."""

    async def diagnose(self, problem: Problem, kernel: Kernel, evaluation: Evaluation) -> Diagnosis:
        """Profiles a correct kernel while nothing is measured on that device. Several may be asked for at
        once. Never raises for the kernel's own failure: the diagnosis then has no level, and says why.
        Cancelling it ends the profile."""
        ...


@runtime_checkable
class ProbeProposer(Protocol):
    """A proposer that asks for probes next to its ideas, and writes them."""

    def take_probes(self) -> list[ProbeRequest]:
        """Returns the probes that `propose` has asked for since the last call of this method."""
        ...

    async def write_probe(self, problem: Problem, request: ProbeRequest, base: Seed | None) -> Kernel | None:
        """Writes the kernel of a probe; returns None if it cannot.

        Args:
            problem: The problem that is searched.
            request: The probe.
            base: The kernel that the probe changes; None for the reference.

        Raises:
            BudgetSpent: If a limit leaves no room for a model call.
            ProposerFailed: If the proposer cannot continue the run.
        """
        ...


@runtime_checkable
class ProbeTimer(Protocol):
    """An evaluator that times probes. `evaluators.scheduler.pool.Pool` does."""

    async def probe(
        self, problem: Problem, kernel: Kernel, *, on_stage: Callable[[str], None] | None = None
    ) -> Probe:
        """Builds and times a kernel without comparing its outputs. Never raises for the kernel's failure."""
        ...


class Library(Protocol):
    """Kernels that outlive a run."""

    def lookup(self, problem: Problem, k: int, environment: Mapping[str, str] | None = None) -> list[Hit]:
        """Returns at most `k` entries that help with the problem, the most helpful first.

        Args:
            problem: The problem to find kernels for.
            k: The largest number of entries to return.
            environment: Facts about the device that the kernels are wanted for.

        Raises:
            OSError: If the library cannot be read.
        """
        ...

    def best(self, problem: Problem, environment: Mapping[str, str]) -> Entry | None:
        """Returns the fastest kernel for exactly this problem on such a device; None if it has none.

        Raises:
            OSError: If the library cannot be read.
        """
        ...

    def refusal(self, entry: Entry) -> str | None:
        """Returns in one line why the library would not accept the entry; None if it would."""
        ...

    def add(self, entry: Entry) -> bool:
        """Adds an entry; returns whether the library accepted it.

        Raises:
            OSError: If the library cannot be written.
        """
        ...


class Observer(Protocol):
    """Watches a run; never steers it."""

    def on_event(self, event: Event) -> None:
        """Called after the event is in the journal. Exceptions are logged and otherwise ignored."""
        ...

    def close(self) -> None:
        """Called once, when the run ends, also after an error."""
        ...
