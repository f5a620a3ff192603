"""A search steered by an agent, as an MCP server on standard input and output:

    ideatree mcp problem=level1/conv2d
    ideatree mcp problem=my_model.py budget.evaluations=100
    ideatree mcp run=outputs/level1/conv2d/2026-01-31_12-00-00

Exit status 0 when the client has disconnected, 130 when interrupted, 1 when the search failed, 2 for an
invalid call. Standard output carries the protocol; everything else goes to standard error.
`docs/guides/agents.md` shows how to register the server with an agent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from evaluators.app.command import (
    EXIT_USAGE,
    CommandCall,
    build,
    command,
    is_refusal,
    log_to,
    one_of,
    output_folder,
)
from evaluators.app.config import DEVICE_HELP, RayConfig, group, hydra_settings, section
from evaluators.app.device_config import require_host, settle_device
from evaluators.base.cause import cause_of, first_line
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.device.child_processes import WorkerBroken
from evaluators.device.settings import Settings
from evaluators.profiling.profiler import AUTO, OFF, PROFILES
from evaluators.records.problem import Problem
from evaluators.scheduler.host import Host
from evaluators.scheduler.pool import Pool
from search.app.plug_ins import plug_ins_of
from search.app.resuming import resume_call
from search.app.run_folders import (
    OUTSTANDING_PER_LANE,
    RUN_FOLDER,
    RunFolderConfig,
    check_wandb,
    keep_config,
    observers_of,
)
from search.engine.agent import Agent, AgentRefused, OnStage
from search.engine.faults import fault
from search.engine.run_folder import finalise
from search.engine.session import Session
from search.protocols import Diagnoser
from search.records.journal import JOURNAL, Journal, JournalError
from search.report.observer import ReportObserver
from search.run.config import budget_of
from search.run.local_diagnoser import LocalDiagnoser

logger = logging.getLogger(__name__)


@dataclass
class AgentBudgetConfig:
    """Limits of a run that an agent steers; null means no limit."""

    rounds: int | None = option(None, "rounds to run; null: no limit")
    evaluations: int | None = option(None, "kernels to evaluate; null: no limit")
    seconds: float | None = option(
        None, "seconds that the server may run, including the agent's thinking; null: no limit"
    )


@dataclass
class McpConfig(RunFolderConfig):
    """The command's config."""

    evaluator: Any = group("default")
    pool: Any = group("ray")
    library: Any = group("folder")
    device: str = option("auto", DEVICE_HELP)
    profile: str = option(
        AUTO, "highest level of the diagnoses that the agent asks for: off | static | trace | counters | auto"
    )
    budget: AgentBudgetConfig = section(AgentBudgetConfig)
    ray: RayConfig = section(RayConfig)
    run: str | None = option(None, "folder of an earlier run to resume; null: a new run")
    hydra: Any = hydra_settings(RUN_FOLDER)


def expand(overrides: Sequence[str]) -> CommandCall:
    """A resumed run uses its stored config. Raises UsageError."""
    return resume_call(overrides, "run", McpConfig) or CommandCall(overrides=overrides)


@command("search.mcp", McpConfig, __doc__, JournalError, expand=expand)
def main(config: DictConfig) -> int:
    """Runs the command; returns its exit status."""
    errors = Console(stderr=True)
    log_to(errors)
    settle(config)
    return asyncio.run(serve(ServedSearch(config, output_folder(), errors)))


def settle(config: DictConfig) -> None:
    """Checks the config and chooses the device. Raises UsageError."""
    check_wandb(config)
    one_of(config, "profile", PROFILES)
    settle_device(config)


async def serve(run: ServedSearch) -> int:
    """Serves until the client disconnects or a signal arrives, then ends the run cleanly."""
    try:
        from search.mcp.tools import Tools, server
    except ImportError as error:
        raise UsageError(f"search.mcp needs the MCP SDK ({error}); pip install mcp") from error
    # The server first: it takes over standard output before anything that is opened could write there.
    serving = asyncio.create_task(server(Tools(run.opened, run.write)).run_stdio_async())
    run.begin()
    signalled = asyncio.create_task(run.interrupted.wait())
    await asyncio.wait({serving, signalled}, return_when=asyncio.FIRST_COMPLETED)
    status = await run.end("disconnected" if serving.done() else "interrupted")
    if not serving.done():
        logging.shutdown()
        # The SDK's thread that reads standard input cannot be woken up, and the loop would wait for it.
        os._exit(status)
    await serving
    return status


class ServedSearch:
    """The search behind the server: opened in the background, ended cleanly."""

    def __init__(self, config: DictConfig, folder: Path, errors: Console) -> None:
        """`folder`: the run's. Raises UsageError and JournalError."""
        self._config, self._folder, self._errors = config, folder, errors
        self._problem: Problem = build(config.problem, device=config.device)
        self._settings: Settings = build(config.evaluator)
        self._budget = budget_of(config.budget)
        # Opened now: another process may have it. A new run's journal is created once the problem is open.
        self._journal = Journal(folder / JOURNAL) if config.run is not None else None
        self._host: asyncio.Future[Host] | None = None
        self._opening: asyncio.Task[Agent] | None = None
        self._agent: Agent | None = None
        self.interrupted = asyncio.Event()
        """Set by SIGINT and SIGTERM."""

    def begin(self) -> None:
        """Starts to open the evaluator, the problem and the journal."""
        self._watch_signals()
        self._opening = asyncio.create_task(self._open())
        self._opening.add_done_callback(self._report_failure)

    async def opened(self, on_stage: OnStage) -> Agent:
        """Waits for the search to open. Raises AgentRefused with the reason if it cannot."""
        assert self._opening is not None
        if not self._opening.done():
            on_stage(f"opening {self._problem.name} on {self._problem.device}")
        return await asyncio.shield(self._opening)

    def write(self) -> dict[str, Any]:
        """Writes `best.py` and `summary.json`; returns the summary."""
        assert self._agent is not None
        return finalise(self._agent.session.journal.path.parent, self._agent.session.state)

    async def end(self, reason: str) -> int:
        """Ends the run and every process that it started; returns the exit status."""
        assert self._opening is not None
        self._opening.cancel()
        agent, status = self._agent, 0 if reason == "disconnected" else 130
        busy = agent is None or agent.busy
        if agent is not None:
            # Clients soon kill a server that they have disconnected from, so write the files first.
            finished = await agent.stop(reason)
            self.write()
            status = 1 if finished.reason.startswith("error") else status
            agent.session.close()
        elif self._opening.done() and not self._opening.cancelled():
            status = EXIT_USAGE if isinstance(self._opening.exception(), AgentRefused) else 1
        await self._close_pool(busy)
        if self._journal is not None:
            self._journal.close()
        return status

    async def _open(self) -> Agent:
        config, problem = self._config, self._problem
        try:
            # In a thread, because starting Ray or joining a cluster takes seconds.
            make = build(config.pool)
            self._host = asyncio.ensure_future(
                asyncio.to_thread(make, settings=self._settings, on_gpu=problem.device == "cuda")
            )
            host = await self._started(self._host)
            pool = Pool(host)
            facts = await pool.describe(problem)
            self._watch_signals()  # again, because Ray sets its own handlers
            if self._journal is None:
                keep_config(self._folder, config)
                self._journal = Journal(self._folder / JOURNAL)
            journal = self._journal
            session = Session(
                problem=problem,
                library=build(config.library.kernels) if config.library.use else None,
                evaluator=pool,
                journal=journal,
                budget=self._budget,
                observers=observers_of(config, journal, self._errors, config.budget, report=ReportObserver),
                outstanding=OUTSTANDING_PER_LANE * (host.devices + host.cores),
                grace_s=0.0,
                confirm_s=0.0,
                environment=facts,
                plug_ins=plug_ins_of(config),
            )
            agent = Agent(session, self._diagnoser())
            agent.start()
        except WorkerBroken as error:
            raise AgentRefused(f"{problem.name} cannot be searched: {cause_of(str(error))}") from error
        except (UsageError, JournalError, OSError) as error:
            raise AgentRefused(first_line(error)) from error
        self._agent = agent
        return agent

    def _diagnoser(self) -> Diagnoser | None:
        """What profiles kernels, unless their devices are on another machine."""
        wanted = str(self._config.profile)
        is_here = wanted != OFF and not self._config.ray.address
        return LocalDiagnoser(self._settings, wanted) if is_here else None

    @staticmethod
    async def _started(starting: asyncio.Future[Host]) -> Host:
        """Raises UsageError for settings that a host refuses."""
        try:
            return require_host(await asyncio.shield(starting))
        except (ValueError, ConnectionError) as error:
            if not is_refusal(error):
                raise
            raise UsageError(first_line(error)) from error

    def _report_failure(self, opening: asyncio.Task[Agent]) -> None:
        """Reports a failure to open, even if no tool is called."""
        if opening.cancelled() or (error := opening.exception()) is None:
            return
        if not isinstance(error, AgentRefused):
            logger.error("the search cannot be opened", exc_info=error)
        self._errors.out(f"search.mcp: {self._why(error)}", highlight=False)

    def _why(self, error: BaseException) -> str:
        return str(error) if isinstance(error, AgentRefused) else fault(error, plug_ins_of(self._config))

    def _watch_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.interrupted.set)

    async def _close_pool(self, busy: bool) -> None:
        if self._host is None:
            return
        try:
            host = await self._host
        except Exception:  # it never started, and `_open` says why
            return
        await asyncio.to_thread(host.close, now=busy)


if __name__ == "__main__":
    sys.exit(main())
