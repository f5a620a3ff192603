"""One search, as objects: what the command, comparisons, campaigns and the Python API build from a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from evaluators.app.command import build
from evaluators.base.cause import first_line
from evaluators.base.usage_error import UsageError
from evaluators.records.problem import Problem
from search.app.plug_ins import plug_ins_of
from search.engine.engine import Engine, require_rounds
from search.engine.faults import PlugIn, naming, plug_in
from search.engine.outside_watch import BLOCKED
from search.engine.pipeline import SAME_ROUND
from search.engine.session import Session
from search.protocols import Diagnoser, HasOwnEvaluator, KernelEvaluator, Library, Proposer, Strategy
from search.recordings.verdicts import RecordedEvaluations
from search.records.budget import Budget
from search.records.journal import Journal
from search.records.ranking import LOWER_END, MEDIAN
from search.records.run_state import RunState
from search.records.tree import Seed
from search.run.config import budget_of


@dataclass(frozen=True, kw_only=True)
class SearchSpec:
    """One search, ready to run.

    Attributes:
        problem: the problem to search.
        strategy: chooses the seeds of each expansion.
        proposer: proposes ideas and writes kernels.
        limits: the arguments of `Budget`.
        evaluator: gives recorded or made-up verdicts; None: kernels are measured.
        library: where known kernels come from and the winner goes; None: neither.
        entries: kernels that take the place of the library's; None: the library's.
        ranking: see `search.records.ranking`.
        seed, history, repairs, stops_when_blocked: see `Engine`.
        compare_leaders, comparisons, race: see `Session`.
        config: the config that all of this was built from. It says where kernels are measured and which
            observers watch the run, and is written to the run folder and to W&B.
    """

    problem: Problem
    strategy: Strategy
    proposer: Proposer
    limits: Mapping[str, Any]
    evaluator: KernelEvaluator | None
    library: Library | None
    entries: Sequence[Seed] | None
    ranking: str
    seed: int
    history: str
    repairs: int
    compare_leaders: bool
    comparisons: int
    race: bool
    stops_when_blocked: bool
    config: DictConfig

    @property
    def plug_ins(self) -> list[PlugIn]:
        """The parts of the search that may be the work of others."""
        built = [plug_in("strategy", self.strategy), plug_in("proposer", self.proposer)]
        return [*plug_ins_of(self.config), *built]

    def engine(
        self,
        journal: Journal,
        evaluator: KernelEvaluator,
        *,
        diagnoser: Diagnoser | None = None,
        **session: Any,
    ) -> Engine:
        """The engine, which continues whatever the journal has; `diagnoser`: see `Engine`; `session`: further
        arguments of `Session`. Raises UsageError for limits and settings that are not possible."""
        try:
            return Engine(
                Session(
                    problem=self.problem,
                    evaluator=evaluator,
                    journal=journal,
                    budget=Budget(**self.limits),
                    library=self.library,
                    entries=self.entries,
                    ranking=self.ranking,
                    compares_each_round=self.compare_leaders,
                    comparisons=self.comparisons,
                    race=self.race,
                    pairs_with_seed=bool(self.config.get("pair_with_seed", False)),
                    plug_ins=self.plug_ins,
                    **session,
                ),
                strategy=self.strategy,
                proposer=self.proposer,
                seed=self.seed,
                history=self.history,
                repairs=self.repairs,
                stops_when_blocked=self.stops_when_blocked,
                diagnoser=diagnoser,
                probes=int(self.config.get("probes", 0)),
                repairs_in=str(self.config.get("repairs_in", SAME_ROUND)),
            )
        except ValueError as error:
            raise UsageError(first_line(error)) from error


def specification(
    config: DictConfig,
    *,
    recording: RunState | None = None,
    strategy: Strategy | None = None,
    proposer: Proposer | None = None,
) -> SearchSpec:
    """The search that a resolved config, with the device to use, describes. `recording`: the run that it
    replays; `strategy` and `proposer` take the place of the config's. Raises UsageError for a part that
    cannot be built, and for a proposer that can do nothing for the problem."""
    given = [("strategy", strategy), ("proposer", proposer)]
    objects = [plug_in(kind, part) for kind, part in given if part is not None]
    with naming([*plug_ins_of(config), *objects]):
        return _specification(config, recording, strategy, proposer)


def _specification(
    config: DictConfig, recording: RunState | None, strategy: Strategy | None, proposer: Proposer | None
) -> SearchSpec:
    problem: Problem = build(config.problem, device=config.device)
    proposer = proposer or build(config.proposer)
    if refusal := proposer.refusal(problem):
        raise UsageError(refusal)
    limits: dict[str, Any] = {"rounds": config.rounds, **config.budget}
    budget_of(limits)
    strategy = strategy or build(config.strategy)
    try:
        require_rounds(strategy, str(config.get("repairs_in", SAME_ROUND)))
    except ValueError as error:
        raise UsageError(first_line(error)) from error
    evaluator: KernelEvaluator | None = None
    entries: Sequence[Seed] | None = None
    ranking = LOWER_END
    if recording is not None and (started := recording.started) is not None:
        entries = started.entries
        if config.replay.evaluations:
            evaluator, ranking = RecordedEvaluations(recording), started.ranking
    if isinstance(proposer, HasOwnEvaluator):
        evaluator, entries, ranking = proposer.evaluator, proposer.entries, MEDIAN
    return SearchSpec(
        problem=problem,
        strategy=strategy,
        proposer=proposer,
        limits=limits,
        evaluator=evaluator,
        library=build(config.library.kernels) if config.library.use and evaluator is None else None,
        entries=entries,
        ranking=ranking,
        seed=config.seed,
        history=config.history,
        repairs=config.repairs,
        compare_leaders=config.compare_leaders,
        comparisons=config.comparisons,
        race=bool(config.get("race", False)),
        stops_when_blocked=config.until == BLOCKED,
        config=config,
    )
