"""The tools that the MCP server offers to an agent: words around `search.agent`, nothing more.

A tool's docstring is what the agent reads of it. Every figure has its unit in its name.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from evaluators.evaluation import Evaluation, Roofline
from evaluators.problem import LANGUAGES
from evaluators.report import cut
from search.agent import Agent, OnStage, Refused
from search.proposers.llm.prompts import LANGUAGES as FIT
from search.proposers.llm.prompts import LIBRARIES, Prompts, tolerance_of
from search.ranking import unconfirmed
from search.tree import Category, Outcome, Seed, Variant, speedups_of

EVERY_S = 5.0
"""How often a client that waits is told that it goes on."""

INSTRUCTIONS = """\
A search for a fast kernel. Measured speed decides: every kernel that you submit is built, checked on secret
inputs against a PyTorch reference, and timed beside it.

1. read_problem, then read_history and list_kernels: earlier work on this run may be there.
2. propose_idea: one optimisation hypothesis, on the reference ("") or on a kernel that is there (its id).
3. submit_kernel: complete source for the idea, as many different variants of it as are worth trying; of a
   failure read the log and submit the mended source with repairs=<its id>.
4. Build the next ideas on what was fastest: parent=<its id>. An idea on a kernel of the open round closes
   that round.
5. finish, when the budget is used up or you have no more ideas: the best kernel is measured again.
"""

CategoryName = Annotated[str, Field(json_schema_extra={"enum": [each.value for each in Category]})]
LanguageName = Annotated[str, Field(json_schema_extra={"enum": ["", *LANGUAGES]})]
Ctx = Context[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where the run stands: what is used, and left (None: no limit)."""

    round: int
    rounds_left: int | None
    evaluations: int
    evaluations_left: int | None
    seconds: float
    seconds_left: float | None
    used_up: str
    """The limit that allows nothing more; "" while there is none."""
    under_way: dict[str, str]
    """Variants without a verdict, with the stage that they are in."""
    finished: str
    """Why the run ended; "" while it goes on."""


@dataclass(frozen=True, kw_only=True)
class KernelReport:
    """A kernel with its verdict. Errors are normwise, against the reference in float64; `wrong_on` names
    further kinds of inputs on which it is not within the tolerance. `why` says what the library found it for;
    without `drop_in` it computes something else, and is there to be read."""

    id: str
    kind: str
    language: str
    status: str
    idea: str = ""
    round: int = 0
    repairs: str = ""
    kernel_ms: float | None = None
    eager_ms: float | None = None
    compile_ms: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    roofline_share: float | None = None
    bound: str = ""
    error: float | None = None
    eager_error: float | None = None
    wrong_on: list[str] = field(default_factory=list)
    rule: str = ""
    log: str = ""
    why: str = ""
    drop_in: bool = True
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class ProblemReport:
    """What is to be made fast, and by which rules it is judged."""

    name: str
    reference: str
    sizes: dict[str, Any]
    dtype: str
    device: str
    tolerance: str
    libraries: str
    rules: str
    languages: list[str]
    categories: list[str]
    facts: dict[str, str]
    eager_ms: float | None
    compile_ms: float | None
    roofline: Roofline | None
    standing: Standing


@dataclass(frozen=True, kw_only=True)
class Tried:
    """An idea and what became of it: its best variant, and that one's time over its parent's (`gain`)."""

    idea: str
    round: int
    category: str
    text: str
    parent: str
    expected: str
    by: str
    variants: dict[str, str]
    """Status by the variant's id."""
    best: str = ""
    kernel_ms: float | None = None
    speedup: float | None = None
    gain: float | None = None


@dataclass(frozen=True, kw_only=True)
class History:
    """Ideas, oldest first; `ideas` counts all of them."""

    ideas: int
    tried: list[Tried]


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The run's fastest correct kernels, and the library's for this problem; each the fastest first."""

    best: list[KernelReport]
    library: list[KernelReport]


@dataclass(frozen=True, kw_only=True)
class Proposed:
    """An idea that is there now."""

    idea: str
    round: int
    parent: str
    standing: Standing


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A kernel with its verdict, and what the budget has left."""

    kernel: KernelReport
    standing: Standing


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How the run ended. `confirmed`: whether the whole interval of the best kernel's final measurement lies
    above 1.00; `not_confirmed` says why not. `summary` is what `summary.json` in the run's folder holds."""

    reason: str
    confirmed: bool
    not_confirmed: str
    best: KernelReport | None
    folder: str
    summary: dict[str, Any]


class Tools:
    """`opened` gives the run once it is open, and says what it waits for; it raises Refused when it cannot be
    opened. `written` writes the files of a finished run and returns the summary."""

    def __init__(
        self, opened: Callable[[OnStage], Awaitable[Agent]], written: Callable[[], dict[str, Any]]
    ) -> None:
        self._opened, self._written = opened, written

    async def read_problem(self, ctx: Ctx) -> ProblemReport:
        """Read what is to be made fast: the PyTorch reference, sizes, dtype, tolerance, whether libraries may
        be called, what a kernel must define, facts of the device. Times of the baselines and the roofline
        are there once a kernel was measured."""
        async with self._run(ctx) as (agent, _):
            session = agent.session
            problem, state = session.problem, session.state
            measured = [e for e in [*state.confirmed.values(), *state.verdicts.values()] if e.timing]
            timings = [evaluation.timing for evaluation in measured if evaluation.timing]
            return ProblemReport(
                name=problem.name,
                reference=problem.source,
                sizes=dict(problem.overrides),
                dtype=problem.dtype,
                device=problem.device,
                tolerance=tolerance_of(problem),
                libraries=LIBRARIES[problem.libraries],
                rules=Prompts().rules(problem),
                languages=list(FIT[problem.device]),
                categories=[each.value for each in Category],
                facts=session.environment,
                eager_ms=_digits(timings[0].eager_ms) if timings else None,
                compile_ms=_digits(next((t.compile_ms for t in timings if t.compile_ms), None)),
                roofline=next((e.roofline for e in measured if e.roofline), None),
                standing=_standing(agent),
            )

    async def read_history(self, ctx: Ctx, limit: int = 20, category: CategoryName = "") -> History:
        """Read the ideas tried so far and what each gained, the last `limit` of them; of one category where
        it is given. `gain` is how many times as fast as its parent an idea's best kernel is."""
        async with self._run(ctx) as (agent, _):
            tree = agent.session.state.tree
            kernels: list[Seed | Variant] = [*agent.session.entries, *tree.variants.values()]
            speedups = speedups_of(kernels, tree.history()) | {"": 1.0}
            outcomes = [o for o in tree.history() if category in ("", o.idea.category.value)]
            tried = [_tried(outcome, speedups) for outcome in outcomes[max(0, len(outcomes) - limit) :]]
            return History(ideas=len(tree.ideas), tried=tried)

    async def list_kernels(self, ctx: Ctx, limit: int = 5, source: bool = False) -> Kernels:
        """List the run's fastest correct kernels and what the library has for this problem. Their ids can be
        the parent of an idea, those with drop_in=false only what it builds on. source=true shows the code,
        too."""
        async with self._run(ctx) as (agent, _):
            best = agent.session.state.tree.best(limit)
            entries = agent.session.entries[:limit]
            return Kernels(
                best=[_variant(each, source=source) for each in best],
                library=[_entry(each, source=source) for each in entries],
            )

    async def read_kernel(self, ctx: Ctx, id: str) -> KernelReport:
        """Read one kernel with its code and its verdict: a variant of this run or an entry of the library.
        Waits for a verdict that is under way."""
        async with self._run(ctx) as (agent, tell):
            for entry in agent.session.entries:
                if entry.id == id:
                    return _entry(entry, source=True)
            return _variant(await agent.verdict(id, tell), source=True)

    async def propose_idea(
        self,
        ctx: Ctx,
        text: str,
        category: CategoryName,
        parent: str = "",
        expected: str = "",
        builds_on: str = "",
    ) -> Proposed:
        """Propose one optimisation idea, before its kernels are submitted.

        text: one or two sentences, concrete: what is changed, and why it should be faster here. parent: the
        id of the kernel that it starts from (a variant or a library entry), "" for the reference itself.
        expected: the effect that you expect. builds_on: the id of a library entry that it takes something
        from besides. The idea belongs to the open round; with a parent of the open round, that round is
        closed first, and its ideas take no more kernels."""
        client = ctx.session.client_params
        async with self._run(ctx) as (agent, tell):
            idea = await agent.propose(
                text=text,
                category=category,
                parent=parent,
                expected=expected,
                builds_on=builds_on,
                model=client.client_info.name if client else "",
                on_stage=tell,
            )
            return Proposed(idea=idea.id, round=idea.round, parent=idea.parent, standing=_standing(agent))

    async def submit_kernel(
        self,
        ctx: Ctx,
        idea: str,
        source: str,
        language: LanguageName = "",
        repairs: str = "",
        wait: bool = True,
    ) -> Submitted:
        """Submit a kernel for an idea; it is built, checked and timed, and the verdict is returned.

        idea: the idea's id. source: a complete Python file that defines ModelNew (see read_problem's rules).
        language: "" to have it guessed. repairs: the id of the failed variant of the same idea that this one
        mends. wait=false returns at once with status "under way", so that several can be under way together:
        read_kernel has the verdict then. A call that was cut off loses nothing: submit the same again, or
        read_kernel. Status infrastructure_error is not the kernel's fault."""
        async with self._run(ctx) as (agent, tell):
            variant = agent.submit(idea=idea, source=source, language=language, repairs=repairs)
            if wait:
                variant = await agent.verdict(variant.id, tell)
            return Submitted(kernel=_variant(variant), standing=_standing(agent))

    async def read_budget(self, ctx: Ctx) -> Standing:
        """Read where the run stands: the open round, what the budget has left, what is under way."""
        async with self._run(ctx) as (agent, _):
            return _standing(agent)

    async def finish(self, ctx: Ctx) -> Finished:
        """End the run: waits for what is under way, measures the best kernel again (for longer, on new
        inputs, against torch.compile, too) and writes best.py and summary.json. An idea proposed after it
        takes the run up again."""
        async with self._run(ctx) as (agent, tell):
            tell("measuring the best kernel again")
            ended = await agent.finish()
            best = None if ended.best is None else _variant(ended.best, ended.confirmed, source=True)
            why = unconfirmed(ended.confirmed) if best else "no kernel was correct"
            return Finished(
                reason=ended.reason,
                confirmed=not why,
                not_confirmed=why,
                best=best,
                folder=str(agent.session.journal.path.parent),
                summary=self._written(),
            )

    @asynccontextmanager
    async def _run(self, ctx: Ctx) -> AsyncIterator[tuple[Agent, OnStage]]:
        """The run, once it is open, and who is to be told of stages. What is refused is the tool's error."""
        async with _progress(ctx) as tell:
            try:
                yield await self._opened(tell), tell
            except Refused as error:
                raise ToolError(str(error)) from error


def server(tools: Tools) -> MCPServer[Any]:
    """An MCP server with these tools."""
    made = MCPServer[Any]("ideatree", instructions=INSTRUCTIONS, log_level="WARNING")
    reading: list[Callable[..., Any]] = [tools.read_problem, tools.read_history, tools.read_budget]
    reading += [tools.list_kernels, tools.read_kernel]
    writing: list[Callable[..., Any]] = [tools.propose_idea, tools.submit_kernel, tools.finish]
    for tool in [*reading, *writing]:
        hints = ToolAnnotations(read_only_hint=tool in reading, open_world_hint=False)
        made.add_tool(tool, description=inspect.getdoc(tool), annotations=hints)
    return made


@asynccontextmanager
async def _progress(ctx: Ctx) -> AsyncIterator[OnStage]:
    """What the function is told goes to the client as it comes, and again every few seconds: clients give up
    on a tool that is silent for long."""
    said: asyncio.Queue[str | None] = asyncio.Queue()
    began = time.monotonic()

    async def pass_on() -> None:
        stage: str | None = ""
        while True:
            try:
                stage = await asyncio.wait_for(said.get(), EVERY_S)
            except TimeoutError:
                pass
            if stage is None:
                return
            elapsed_s = time.monotonic() - began
            await ctx.report_progress(elapsed_s, message=f"{stage} ({elapsed_s:.0f} s)")

    passing = asyncio.create_task(pass_on())
    try:
        yield said.put_nowait
        said.put_nowait(None)
        await passing
    finally:
        passing.cancel()


def _standing(agent: Agent) -> Standing:
    budget, state = agent.session.budget, agent.session.state
    closed, remaining_s = state.tree.rounds_closed, budget.remaining_s
    return Standing(
        round=agent.round,
        rounds_left=None if budget.rounds is None else max(0, budget.rounds - closed),
        evaluations=budget.spent,
        evaluations_left=None if budget.evaluations is None else budget.available,
        seconds=round(budget.elapsed_s, 1),
        seconds_left=None if remaining_s is None else round(remaining_s, 1),
        used_up=budget.exhausted(closed) or "",
        under_way=dict(agent.stages),
        finished=state.finished.reason if state.finished else "",
    )


def _variant(variant: Variant, confirmed: Evaluation | None = None, *, source: bool = False) -> KernelReport:
    evaluation = confirmed or variant.evaluation
    return KernelReport(
        id=variant.id,
        kind="variant",
        language=variant.kernel.language,
        idea=variant.idea,
        round=variant.round,
        repairs=variant.repairs,
        source=variant.kernel.source if source else "",
        **({"status": "under way"} if evaluation is None else _figures(evaluation)),
    )


def _entry(entry: Seed, *, source: bool) -> KernelReport:
    return KernelReport(
        id=entry.id,
        kind="library",
        language=entry.kernel.language,
        why=entry.why,
        drop_in=entry.drop_in,
        source=entry.kernel.source if source else "",
        **({"status": "not measured here"} if entry.evaluation is None else _figures(entry.evaluation)),
    )


def _figures(evaluation: Evaluation) -> dict[str, Any]:
    """What a report says of an evaluation."""
    found: dict[str, Any] = {"status": evaluation.status.value, "rule": evaluation.rule}
    found["log"] = "\n".join(cut(evaluation.log.strip()))
    if (timing := evaluation.timing) is not None:
        for name in ("kernel_ms", "eager_ms", "compile_ms", "speedup", "speedup_low", "speedup_high"):
            found[name] = _digits(getattr(timing, name))
    if evaluation.roofline is not None:
        found |= {"roofline_share": _digits(evaluation.roofline_share), "bound": evaluation.roofline.bound}
    if (correctness := evaluation.correctness) is not None:
        found["error"] = _digits(correctness.normwise_error)
        found["eager_error"] = _digits(correctness.eager_error)
        found["wrong_on"] = [kind for kind, right in correctness.families.items() if not right]
    return found


def _tried(outcome: Outcome, speedups: Mapping[str, float]) -> Tried:
    idea, best = outcome.idea, outcome.best
    timing = best.evaluation.timing if best and best.evaluation else None
    before = speedups.get(idea.parent)
    return Tried(
        idea=idea.id,
        round=idea.round,
        category=idea.category.value,
        text=idea.text,
        parent=idea.parent,
        expected=idea.expected,
        by=idea.model,
        variants={v.id: v.evaluation.status.value if v.evaluation else "under way" for v in outcome.variants},
        best=best.id if best else "",
        kernel_ms=_digits(timing.kernel_ms) if timing else None,
        speedup=_digits(timing.speedup) if timing else None,
        gain=_digits(timing.speedup / before) if timing and before else None,
    )


def _digits(value: float | None) -> float | None:
    """Four significant digits."""
    return None if value is None else float(f"{value:.4g}")
