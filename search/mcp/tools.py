"""The tools that the MCP server offers to an agent: a thin layer of words around `search.engine.agent`.

A tool's docstring is the description that the agent reads.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field, ValidationError

from evaluators.base.languages import LANGUAGES
from evaluators.rewards.completions import read_kernel
from search.engine.agent import Agent, AgentRefused, OnStage
from search.mcp.answers import (
    DiagnosisReport,
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
from search.proposers.llm.prompts import LIBRARIES, Prompts, tolerance_of
from search.records.ranking import unconfirmed
from search.records.tree import Category, Seed, Variant, speedups_of

EVERY_S = 5.0
"""Seconds between progress messages to a waiting client."""

INSTRUCTIONS = """\
A search for a fast kernel. Measured speed decides: every kernel that you submit is built, checked against a
PyTorch reference on secret inputs, and timed against it.

1. Call read_problem, then read_history and list_kernels: the run may contain ideas and kernels already.
2. propose_idea: propose one optimisation hypothesis for the reference (parent "") or for an existing kernel
   (parent: its id).
3. submit_kernel: submit complete source for the idea, as many different variants as are worth trying. If one
   fails, read its log and submit the corrected source with repairs=<its id>.
4. Build the next ideas on the fastest kernels: parent=<its id>. read_diagnosis says what keeps a kernel from
   being faster. An idea for a kernel of the open round closes that round.
5. finish: when the budget is used up or you have no more ideas, have the best kernel measured again.
"""

CategoryName = Annotated[str, Field(json_schema_extra={"enum": [each.value for each in Category]})]
LanguageName = Annotated[str, Field(json_schema_extra={"enum": ["", *LANGUAGES]})]
Ctx = Context[Any, Any]


class Tools:
    """The tools of one run. `opened` waits for the run to open, reports what it waits for, and raises
    AgentRefused if it cannot. `written` writes the files of a finished run and returns the summary."""

    def __init__(
        self, opened: Callable[[OnStage], Awaitable[Agent]], written: Callable[[], dict[str, Any]]
    ) -> None:
        self._opened, self._written = opened, written

    async def read_problem(self, ctx: Ctx) -> ProblemReport:
        """Read the problem: what to make faster, and how kernels are judged.

        Returns the PyTorch reference, sizes, dtype, tolerance, whether libraries may be called, what a kernel
        must define, and facts about the device. Once a kernel was measured, it also returns the baselines'
        times (eager_ms, compile_ms, in milliseconds per call) and the roofline.
        """
        async with self._run(ctx) as (agent, _):
            session = agent.session
            problem, state = session.problem, session.state
            measured = [e for e in [*state.confirmed.values(), *state.verdicts.values()] if e.timing]
            prompts = Prompts()
            timings = [evaluation.timing for evaluation in measured if evaluation.timing]
            return ProblemReport(
                name=problem.name,
                reference=problem.source,
                sizes=dict(problem.overrides),
                dtype=problem.dtype,
                device=problem.device,
                tolerance=tolerance_of(problem),
                libraries=LIBRARIES[problem.libraries],
                rules=prompts.rules(problem, session.environment),
                languages=prompts.languages(problem, session.environment),
                categories=[each.value for each in Category],
                facts=session.environment,
                eager_ms=digits(timings[0].eager_ms) if timings else None,
                compile_ms=digits(next((t.compile_ms for t in timings if t.compile_ms), None)),
                roofline=next((e.roofline for e in measured if e.roofline), None),
                standing=standing(agent),
            )

    async def read_history(self, ctx: Ctx, limit: int = 20, category: CategoryName = "") -> History:
        """Read the ideas tried so far, oldest first, and what each gained.

        `gain` is how many times as fast as its parent an idea's best kernel is; times are in milliseconds.

        Args:
            limit: The number of ideas to return, the latest ones.
            category: Return only ideas of this category; "" for all.
        """
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
        """List the run's fastest correct kernels, and the library's kernels for this problem.

        Their ids can be the parent of an idea. Library kernels with drop_in=false solve another problem: an
        idea can only name them in builds_on.

        Args:
            limit: The largest number of kernels in each list.
            source: Whether to include the code.
        """
        async with self._run(ctx) as (agent, _):
            best = agent.session.state.tree.best(limit)
            entries = agent.session.entries[:limit]
            return Kernels(
                best=[variant_report(each, source=source) for each in best],
                library=[entry_report(each, source=source) for each in entries],
            )

    async def read_kernel(self, ctx: Ctx, id: str) -> KernelReport:
        """Read one kernel with its code and verdict, waiting for the verdict if necessary.

        Args:
            id: The id of a variant of this run or of a library kernel.
        """
        async with self._run(ctx) as (agent, tell):
            for entry in agent.session.entries:
                if entry.id == id:
                    return entry_report(entry, source=True)
            return variant_report(await agent.verdict(id, tell), source=True)

    async def read_diagnosis(self, ctx: Ctx, id: str) -> DiagnosisReport:
        """Read what keeps a correct kernel from being faster: bottlenecks, evidence, what usually helps.

        The diagnosis comes from a profile, by fixed rules. A kernel that was not profiled yet is profiled
        now, after the evaluations under way. This takes the device for seconds to minutes, but no evaluation
        of the budget. A profile changes times, so compare kernels by the times of their verdicts.

        Args:
            id: The id of a correct variant of this run, or of a library kernel that was measured here.
        """
        async with self._run(ctx) as (agent, tell):
            return DiagnosisReport(id=id, diagnosis=(await agent.diagnosis(id, tell)).text())

    async def propose_idea(
        self,
        ctx: Ctx,
        text: str,
        category: CategoryName,
        parent: str = "",
        expected: str = "",
        builds_on: str = "",
    ) -> Proposed:
        """Propose one optimisation idea; submit its kernels afterwards.

        The idea belongs to the open round. If its parent belongs to the open round too, that round is closed
        first: this waits for its verdicts, and its ideas accept no more kernels.

        Args:
            text: One or two concrete sentences: what to change, and why it should be faster here.
            category: The kind of optimisation.
            parent: The id of the kernel to start from (a variant or a library kernel); "" for the reference.
            expected: The effect that you expect.
            builds_on: The id of another library kernel that the idea uses in addition; "" for none.
        """
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
        """Submit a kernel for an idea: it is built, checked and timed, and its verdict is returned.

        If the call is interrupted, nothing is lost: submit the same kernel again, or call read_kernel. The
        statuses infrastructure_error and unfit_reference are not the kernel's fault.

        Args:
            idea: The id of the idea.
            source: A complete Python file that defines ModelNew (see the rules from read_problem).
            language: The language of the kernel; "" to detect it.
            repairs: The id of the failed variant of the same idea that this kernel repairs; "" for none.
            wait: Whether to wait for the verdict. With false, the status is "under way", and several kernels
                can be evaluated at the same time; read_kernel returns the verdict later.
        """
        async with self._run(ctx) as (agent, tell):
            with suppress(ValueError):  # otherwise the evaluator says what is wrong
                source = read_kernel(source).source
            variant = agent.submit(idea=idea, source=source, language=language, repairs=repairs)
            if wait:
                variant = await agent.verdict(variant.id, tell)
            return Submitted(kernel=variant_report(variant), standing=standing(agent))

    async def read_budget(self, ctx: Ctx) -> RunStanding:
        """Read the state of the run: the open round, what the budget has left, and kernels in flight.

        Times are in seconds; null means no limit.
        """
        async with self._run(ctx) as (agent, _):
            return standing(agent)

    async def finish(self, ctx: Ctx) -> Finished:
        """End the run: measure the best kernel again and write best.py and summary.json.

        This waits for kernels in flight. The final measurement is longer, uses new inputs, and includes
        torch.compile. Proposing another idea afterwards reopens the run.
        """
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
        """Waits for the run; gives it, and a function that reports stages. A refusal becomes the tool's
        error."""
        async with _progress(ctx) as tell:
            try:
                yield await self._opened(tell), tell
            except AgentRefused as error:
                raise ToolError(str(error)) from error


class OneLineServer(MCPServer[Any]):
    """Reports invalid arguments in one line; the SDK would send pydantic's report, with a URL for each."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """See the SDK."""
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
    writing: list[Callable[..., Any]] = [tools.read_diagnosis, tools.propose_idea, tools.submit_kernel]
    writing += [tools.finish]
    for tool in [*reading, *writing]:
        hints = ToolAnnotations(read_only_hint=tool in reading, open_world_hint=False)
        made.add_tool(tool, description=inspect.getdoc(tool), annotations=hints)
    return made


@asynccontextmanager
async def _progress(ctx: Ctx) -> AsyncIterator[OnStage]:
    """Sends each reported stage to the client, and repeats it every few seconds, because clients give up on a
    silent tool."""
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
