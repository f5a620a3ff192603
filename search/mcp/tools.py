"""The tools that the MCP server offers to an agent: words around `search.engine.agent`, nothing more.

A tool's docstring is what the agent reads of it.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field, ValidationError

from evaluators.records.problem import LANGUAGES
from search.engine.agent import Agent, AgentRefused, OnStage
from search.mcp.answers import (
    Finished,
    History,
    KernelReport,
    Kernels,
    ProblemReport,
    Proposed,
    RunStanding,
    Submitted,
    digits,
    entry_report,
    outcome_report,
    standing,
    variant_report,
)
from search.proposers.llm.prompts import LANGUAGES as FIT
from search.proposers.llm.prompts import LIBRARIES, Prompts, tolerance_of
from search.records.ranking import unconfirmed
from search.records.tree import Category, Seed, Variant, speedups_of

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
                eager_ms=digits(timings[0].eager_ms) if timings else None,
                compile_ms=digits(next((t.compile_ms for t in timings if t.compile_ms), None)),
                roofline=next((e.roofline for e in measured if e.roofline), None),
                standing=standing(agent),
            )

    async def read_history(self, ctx: Ctx, limit: int = 20, category: CategoryName = "") -> History:
        """Read the ideas tried so far and what each gained, the last `limit` of them; of one category where
        it is given. `gain` is how many times as fast as its parent an idea's best kernel is."""
        async with self._run(ctx) as (agent, _):
            tree = agent.session.state.tree
            kernels: list[Seed | Variant] = [*agent.session.entries, *tree.variants.values()]
            speedups = speedups_of(kernels, tree.history()) | {"": 1.0}
            outcomes = [o for o in tree.history() if category in ("", o.idea.category.value)]
            tried = [
                outcome_report(outcome, speedups) for outcome in outcomes[max(0, len(outcomes) - limit) :]
            ]
            return History(ideas=len(tree.ideas), tried=tried)

    async def list_kernels(self, ctx: Ctx, limit: int = 5, source: bool = False) -> Kernels:
        """List the run's fastest correct kernels and what the library has for this problem. Their ids can be
        the parent of an idea, those with drop_in=false only what it builds on. source=true shows the code,
        too."""
        async with self._run(ctx) as (agent, _):
            best = agent.session.state.tree.best(limit)
            entries = agent.session.entries[:limit]
            return Kernels(
                best=[variant_report(each, source=source) for each in best],
                library=[entry_report(each, source=source) for each in entries],
            )

    async def read_kernel(self, ctx: Ctx, id: str) -> KernelReport:
        """Read one kernel with its code and its verdict: a variant of this run or an entry of the library.
        Waits for a verdict that is under way."""
        async with self._run(ctx) as (agent, tell):
            for entry in agent.session.entries:
                if entry.id == id:
                    return entry_report(entry, source=True)
            return variant_report(await agent.verdict(id, tell), source=True)

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
            return Proposed(idea=idea.id, round=idea.round, parent=idea.parent, standing=standing(agent))

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
        read_kernel. Neither infrastructure_error nor unfit_reference is the kernel's fault."""
        async with self._run(ctx) as (agent, tell):
            variant = agent.submit(idea=idea, source=source, language=language, repairs=repairs)
            if wait:
                variant = await agent.verdict(variant.id, tell)
            return Submitted(kernel=variant_report(variant), standing=standing(agent))

    async def read_budget(self, ctx: Ctx) -> RunStanding:
        """Read where the run stands: the open round, what the budget has left, what is under way."""
        async with self._run(ctx) as (agent, _):
            return standing(agent)

    async def finish(self, ctx: Ctx) -> Finished:
        """End the run: waits for what is under way, measures the best kernel again (for longer, on new
        inputs, against torch.compile, too) and writes best.py and summary.json. An idea proposed after it
        takes the run up again."""
        async with self._run(ctx) as (agent, tell):
            tell("measuring the best kernel again")
            ended = await agent.finish()
            best = None if ended.best is None else variant_report(ended.best, ended.confirmed, source=True)
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
            except AgentRefused as error:
                raise ToolError(str(error)) from error


class OneLineServer(MCPServer[Any]):
    """Refuses arguments in one line; the SDK would give pydantic's report, with an address for each."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """See the SDK's."""
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if not isinstance(why := error.__cause__, ValidationError):
                raise
            faults = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in why.errors())
            raise ToolError(f"{name}: {'; '.join(faults)}") from why


def server(tools: Tools) -> MCPServer[Any]:
    """An MCP server with these tools."""
    made = OneLineServer("ideatree", instructions=INSTRUCTIONS, log_level="WARNING")
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
