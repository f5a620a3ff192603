"""Judges kernels: an evaluator with an asynchronous and a synchronous interface, whose `with` block starts
and ends its processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from evaluators.app.command import choose_device
from evaluators.app.verdict_report import verdict
from evaluators.device.settings import Settings
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem
from evaluators.scheduler.host import Host
from evaluators.scheduler.local_host import LocalHost
from evaluators.scheduler.pool import Pool
from evaluators.scheduler.ray_host import RayHost
from ideatree.problems import as_kernel, load_problem

ProblemLike = str | Path | Problem
KernelLike = str | Path | Kernel
CLOSED = "the evaluator is not open; use it inside its with block"


class AsyncEvaluator:
    """Judges kernels, many at a time, within `async with`.

    A problem is the name of a shipped one, the `Path` of a reference, or a `Problem`. A kernel is its source,
    its `Path`, or a `Kernel`.

    Args:
        device: `cuda`, `cpu`, or `auto` for a GPU if there is one.
        ray: None to run in threads of this process, "" to start Ray locally, or the address of a Ray cluster.
        settings: limits, and how long to measure.
    """

    def __init__(
        self, *, device: str = "auto", ray: str | None = None, settings: Settings | None = None
    ) -> None:
        self.device, _ = choose_device(device, clustered=bool(ray))
        self._ray, self._settings = ray, settings or Settings()
        self._pool: Pool | None = None

    async def __aenter__(self) -> Self:
        """Starts Ray or threads; the first kernel starts the processes. Raises ConnectionError if the cluster
        cannot be reached."""
        self._pool = Pool(await asyncio.to_thread(self._host))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None:
            await asyncio.to_thread(self._pool.close, now=kind is not None)
        self._pool = None

    async def evaluate(
        self, problem: ProblemLike, kernel: KernelLike, *, thorough: bool = True
    ) -> Evaluation:
        """Judges one kernel.

        Args:
            problem: the problem that the kernel must solve.
            kernel: the kernel.
            thorough: measure longer, and also compare with `torch.compile`; False measures as a search does.

        Returns:
            The evaluation. A kernel that fails, or a reference that cannot judge, is a status, not an error.

        Raises:
            UsageError: the problem or the kernel's file is not valid.
        """
        return await self._open().evaluate(self._problem(problem), as_kernel(kernel), thorough=thorough)

    async def evaluate_many(
        self, problem: ProblemLike, kernels: Sequence[KernelLike], *, thorough: bool = False
    ) -> list[Evaluation]:
        """Judges several kernels, which are built in parallel and measured one at a time per device.

        Returns:
            One evaluation per kernel, in order. The arguments and errors are those of `evaluate`.
        """
        pool, asked, made = self._open(), self._problem(problem), [as_kernel(each) for each in kernels]
        return await asyncio.gather(*(pool.evaluate(asked, each, thorough=thorough) for each in made))

    async def compare(self, problem: ProblemLike, kernels: Sequence[KernelLike]) -> list[Evaluation]:
        """Compares kernels with one another and with eager PyTorch in one session.

        Returns:
            One evaluation per kernel, in order. The timing samples of all correct kernels are paired (see
            `evaluators.records.timing.paired_speedup`).
        """
        asked, made = self._problem(problem), [as_kernel(each) for each in kernels]
        return await self._open().compare(asked, made, thorough=True)

    def _open(self) -> Pool:
        if self._pool is None:
            raise RuntimeError(CLOSED)
        return self._pool

    def _problem(self, problem: ProblemLike) -> Problem:
        return problem if isinstance(problem, Problem) else load_problem(problem, device=self.device)

    def _host(self) -> Host:
        on_gpu = self.device == "cuda"
        if self._ray is None:
            return LocalHost(settings=self._settings, on_gpu=on_gpu)
        return RayHost(settings=self._settings, on_gpu=on_gpu, address=self._ray)


class Evaluator:
    """Judges kernels within `with`: `AsyncEvaluator`, with the same arguments, for notebooks and for programs
    without an event loop."""

    def __init__(
        self, *, device: str = "auto", ray: str | None = None, settings: Settings | None = None
    ) -> None:
        self._evaluator = AsyncEvaluator(device=device, ray=ray, settings=settings)
        self._stack = contextlib.ExitStack()
        self._portal: BlockingPortal | None = None

    @property
    def device(self) -> str:
        """The device in use, `cuda` or `cpu`."""
        return self._evaluator.device

    def __enter__(self) -> Self:
        """See `AsyncEvaluator`."""
        with contextlib.ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(self._portal.wrap_async_context_manager(self._evaluator))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal = None
        self._stack.__exit__(kind, error, trace)

    def evaluate(self, problem: ProblemLike, kernel: KernelLike, *, thorough: bool = True) -> Evaluation:
        """See `AsyncEvaluator.evaluate`."""
        return self._open().call(lambda: self._evaluator.evaluate(problem, kernel, thorough=thorough))

    def evaluate_many(
        self, problem: ProblemLike, kernels: Sequence[KernelLike], *, thorough: bool = False
    ) -> list[Evaluation]:
        """See `AsyncEvaluator.evaluate_many`."""
        return self._open().call(lambda: self._evaluator.evaluate_many(problem, kernels, thorough=thorough))

    def compare(self, problem: ProblemLike, kernels: Sequence[KernelLike]) -> list[Evaluation]:
        """See `AsyncEvaluator.compare`."""
        return self._open().call(lambda: self._evaluator.compare(problem, kernels))

    def _open(self) -> BlockingPortal:
        if self._portal is None:
            raise RuntimeError(CLOSED)
        return self._portal


def report(evaluation: Evaluation) -> str:
    """The text that `ideatree evaluate` prints for an evaluation."""
    return "\n".join(verdict(evaluation))
