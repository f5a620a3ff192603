"""A deterministic proposer and evaluator for tests, with delays and failures to order, and runs made of them.

Whatever they answer depends on their arguments alone; how long they take does not.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Kernel, Problem
from search.engine.engine import Engine
from search.engine.session import Session
from search.protocols import RunContext
from search.records.budget import Budget
from search.records.events import Event, RunFinished
from search.records.journal import Journal, replay
from search.records.model_calls import Answer, CallFailed, Limits, Price, Question, Usage
from search.records.run_state import RunState, rebuild
from search.records.tree import Category, Expansion, Idea, Outcome, Seed, Tree, Variant, fastest
from search.strategies.idea_branching import IdeaBranching

PROBLEM = Problem(name="level1/fake", source="class Model: ...", overrides={"N": 4, "shape": (2, (3, "x"))})


def kernel(name: object) -> Kernel:
    return Kernel(source=f"class ModelNew: ...  # {name}\n", language="triton")


def timing(speedup: float = 2.0, *, kernel_ms: float = 0.5) -> Timing:
    return Timing(
        kernel_ms=kernel_ms,
        eager_ms=kernel_ms * speedup,
        speedup=speedup,
        speedup_low=speedup * 0.99,
        speedup_high=speedup * 1.01,
        compile_ms=kernel_ms * speedup * 0.8,
        kernel_samples_ms=(kernel_ms, kernel_ms * 1.01),
    )


def correct(speedup: float = 2.0) -> Evaluation:
    return Evaluation(status=Status.CORRECT, timing=timing(speedup), device_s=0.25)


def failed(status: Status = Status.INCORRECT) -> Evaluation:
    return Evaluation(status=status, log=f"it is {status}", rule="x" if status is Status.REJECTED else "")


def outcome(
    text: str,
    *found: Evaluation,
    parent: str = "",
    category: Category = Category.MEMORY,
    model: str = "",
    round: int = 1,
) -> Outcome:
    """An idea with a variant for each of these verdicts."""
    idea = Idea(text=text, category=category, parent=parent, round=round, proposer="llm", model=model)
    variants = tuple(
        Variant(kernel=kernel(f"{text} {i}"), idea=idea.id, parent=parent, round=round, evaluation=each)
        for i, each in enumerate(found)
    )
    return Outcome(idea=idea, best=next(iter(fastest(variants, 1)), None), variants=variants)


async def pause(delay_s: float) -> None:
    """Up to `delay_s`, differently each time: what finishes first is not to matter."""
    await asyncio.sleep(random.random() * delay_s)


class FakeProposer:
    """Ideas and kernels out of the generator it is given; `pool` few kernels, so that some come up twice.

    Idea texts depend on what the history tells, so that a run shows when a proposer was told otherwise.
    Gives up after `last_round`; raises RuntimeError at the `fail_at`-th call.
    """

    def __init__(
        self, *, delay_s: float = 0.0, pool: int = 10**9, last_round: int = 10**9, fail_at: int = 0
    ) -> None:
        self.delay_s = delay_s
        self.pool = pool
        self.last_round = last_round
        self.fail_at = fail_at
        self.calls = 0
        self.histories: list[list[Outcome]] = []
        self.implemented: list[str] = []
        self.repaired: list[str] = []
        self.context: RunContext | None = None
        self.closed = 0

    def refusal(self, problem: Problem) -> str | None:
        return None

    def extends(self, problem: Problem, kernel: Kernel) -> bool:
        return True

    def begin(self, run: RunContext) -> None:
        self.context = run

    async def close(self) -> None:
        self.closed += 1

    async def propose(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], rng: random.Random
    ) -> list[Idea]:
        await self._call()
        self.histories.append(list(history))
        if expansion.round > self.last_round:
            return []
        gains = [each.best.evaluation.speedup for each in history if each.best and each.best.evaluation]
        told = hashlib.sha256(repr(([o.idea.id for o in history], gains)).encode()).hexdigest()[:8]
        return [
            Idea(
                text=f"idea {rng.random()} told {told}",
                category=rng.choice(list(Category)),
                parent="wrong: the engine knows better",
                round=0,
                proposer="fake",
                known_ideas=tuple(outcome.idea.id for outcome in history),
            )
            for _ in range(expansion.ideas)
        ]

    async def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        await self._call()
        self.implemented.append(idea.id)
        for _ in range(n):
            yield kernel(rng.randrange(self.pool))

    async def repair(
        self, problem: Problem, idea: Idea, failed: Variant, rng: random.Random
    ) -> Kernel | None:
        await self._call()
        self.repaired.append(failed.id)
        return kernel(f"repaired {failed.kernel.source.rpartition('#')[2].strip()}")

    async def _call(self) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError("the model is on strike")
        await pause(self.delay_s)


def verdict_by_hash(kernel: Kernel) -> Evaluation:
    """About half correct, with different speedups; every status there is but our own failure."""
    value = int(kernel.id, 16)
    if value % 2:
        return correct(0.5 + value % 1009 / 300)
    others = (Status.CORRECT, Status.DECLINED, Status.OUTPACED)  # not of one case, or of a race
    statuses = [s for s in Status if s.is_of_the_kernel and s not in others]
    return failed(statuses[value // 2 % len(statuses)])


class FakeEvaluator:
    """Judges by `verdict`; counts how often it saw each kernel, and how many at a time."""

    def __init__(
        self,
        *,
        verdict: Callable[[Kernel], Evaluation] = verdict_by_hash,
        thorough: Callable[[Kernel], Evaluation] | None = None,
        delay_s: float = 0.0,
    ) -> None:
        self.verdict = verdict
        self.thorough = thorough or verdict
        self.delay_s = delay_s
        self.seen: Counter[str] = Counter()
        self.compared: list[list[str]] = []
        self.confirmed: list[str] = []
        self.running = 0
        self.most_running = 0

    async def evaluate(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        thorough: bool = False,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        if thorough:
            self.confirmed.append(kernel.id)
            return self.thorough(kernel)
        self.seen[kernel.id] += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if on_stage is not None:
                on_stage("measuring")
            await pause(self.delay_s)
            return self.verdict(kernel)
        finally:
            self.running -= 1

    async def compare(self, problem: Problem, kernels: Sequence[Kernel]) -> list[Evaluation]:
        """Turns whose noise is the same for all: each kernel's ratio to another is exact."""
        self.compared.append([kernel.id for kernel in kernels])
        await pause(self.delay_s)
        return [in_turns(self.verdict(kernel)) for kernel in kernels]


def in_turns(evaluation: Evaluation, turns: int = 8) -> Evaluation:
    """The evaluation with a sample for each turn of a session; eager takes 1 ms, and more in some turns, in
    which all are slow."""
    if evaluation.timing is None:
        return evaluation
    own, slow = evaluation.timing, [1 + 0.3 * (turn % 3) for turn in range(turns)]
    return replace(
        evaluation,
        timing=replace(
            own,
            kernel_samples_ms=tuple(each / own.speedup for each in slow),
            eager_samples_ms=tuple(slow),
        ),
    )


class ScriptedModel:
    """A model that answers by a function of the question: a text, or a failure to raise. `usage` is what
    each answer is said to have used; `delay_s` how long it takes at most."""

    def __init__(
        self,
        answer: Callable[[Question], str | CallFailed],
        *,
        name: str = "scripted/one",
        price: Price | None = None,
        limits: Limits | None = None,
        usage: Usage | None = None,
        delay_s: float = 0.0,
    ) -> None:
        self.answer = answer
        self.name = name
        self.price = price or Price(input=0.0, output=0.0)
        self.limits = limits or Limits(tries=2, output_tokens=1000)
        self.usage = usage or Usage(input_tokens=100, output_tokens=50)
        self.delay_s = delay_s
        self.asked: list[Question] = []
        self.closed = 0

    def refusal(self) -> str | None:
        return None

    def begin(self, folder: Path) -> None: ...

    async def complete(self, question: Question) -> Answer:
        self.asked.append(question)
        await pause(self.delay_s)
        found = self.answer(question)
        if isinstance(found, CallFailed):
            raise found
        return Answer(text=found, usage=self.usage)

    async def close(self) -> None:
        self.closed += 1


def ideas_answer(*texts: str, seed: str = "", category: str = "memory access") -> str:
    """The JSON that a model answers with to a question for ideas."""
    rest = {"category": category, "expected_effect": "faster", "seed": seed, "library_entry": ""}
    return json.dumps({"ideas": [{"text": text, **rest} for text in texts]})


def code_answer(name: object) -> str:
    """The Markdown that a model answers with to a question for code."""
    return f"Here it is:\n\n```python\n{kernel(name).source}```\n"


class Recorder:
    """An observer that keeps what it sees."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = 0

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def search(path: Path, *, ideas: int = 4, branch: int = 3, keep: int = 2, **parts: Any) -> RunFinished:
    """Runs, or resumes, a search with the journal at `path`, to its end."""
    with Journal(path) as journal:
        engine = build(journal, ideas=ideas, branch=branch, keep=keep, **parts)
        return asyncio.run(engine.run())


def build(journal: Journal, *, ideas: int = 4, branch: int = 3, keep: int = 2, **parts: Any) -> Engine:
    """An engine with fakes for the parts that are not named."""
    limits = {name: parts.pop(name, None) for name in ("evaluations", "seconds")}
    budget = parts.pop("budget", None) or Budget(rounds=parts.pop("rounds", 3), **limits)
    parts.setdefault("problem", PROBLEM)
    parts.setdefault("evaluator", FakeEvaluator())
    strategy = parts.pop("strategy", IdeaBranching(ideas=ideas, branch=branch, keep=keep))
    proposer = parts.pop("proposer", FakeProposer())
    policy = {
        name: parts.pop(name)
        for name in (
            *("seed", "history", "repairs", "repairs_in", "writing"),
            *("stops_when_blocked", "diagnoser", "probes"),
        )
        if name in parts
    }
    session = Session(journal=journal, budget=budget, **parts)
    return Engine(session, strategy=strategy, proposer=proposer, **policy)


def state_of(path: Path) -> RunState:
    return rebuild(replay(path))


def contents(tree: Tree) -> dict[str, Any]:
    """All that must not depend on the order in which work finished."""
    return {
        "rounds": tree.rounds_closed,
        "ideas": list(tree.ideas.values()),
        "variants": tree.variants,
        "of": {idea: [v.id for v in tree.variants_of(idea)] for idea in tree.ideas},
        "best": tree.best(5),
    }
