"""The HTTP interface of the reward server."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from evaluators.base.cause import first_line
from evaluators.base.languages import language_of
from evaluators.base.usage_error import UsageError
from evaluators.device.child_processes import UnfitProblem, WorkerBroken
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.rewards.completions import read_kernel
from evaluators.rewards.line import Line, LineIsFull
from evaluators.rewards.messages import (
    BatchAnswer,
    BatchRequest,
    Failure,
    Health,
    State,
    VerifyAnswer,
    VerifyRequest,
    answer,
    malformed,
)
from evaluators.rewards.requested_problems import RequestedProblems
from evaluators.rewards.reward import RewardPolicy
from evaluators.rewards.verdicts import Verdicts

logger = logging.getLogger(__name__)

Answered = VerifyAnswer | Failure
T = TypeVar("T")
SECONDS = (0.1, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640)
"""The bounds of the histogram of durations."""


class NotReady(Exception):
    """The server takes no requests now."""


class Gone(Exception):
    """The client closed its connection before it had its answer."""


class Metrics:
    """The server's figures in Prometheus' format."""

    def __init__(self, line: Line) -> None:
        self.registry = CollectorRegistry()
        self.answers = Counter(
            "ideatree_answers", "answers by status", ["client", "status"], registry=self.registry
        )
        self.known = Counter(
            "ideatree_known_verdicts", "answers whose verdict was known before", registry=self.registry
        )
        self.refused = Counter(
            "ideatree_refused_requests",
            "requests that found the line full",
            ["client"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "ideatree_answer_seconds",
            "seconds from request to answer",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.device_s = Counter(
            "ideatree_device_seconds", "seconds for which kernels had a device", registry=self.registry
        )
        for name, about, value in (
            ("ideatree_waiting_requests", "measurements that wait", lambda: line.waiting),
            ("ideatree_working_requests", "measurements at work", lambda: line.working),
        ):
            Gauge(name, about, registry=self.registry).set_function(value)


@dataclass(kw_only=True)
class RewardServer:
    """Answers requests for rewards.

    Attributes:
        problems: Makes the problems that clients ask for.
        policies: The reward policies by name.
        default: The name of the policy for requests that name none.
        line: The line of the measurements.
        device: The name of the devices.
        verdicts: The verdicts; None until the devices are ready.
        takes_references: Whether clients may send references, whose code runs with this server's rights.
        draining: Whether it takes no new requests, because it is about to end.
    """

    problems: RequestedProblems
    policies: Mapping[str, RewardPolicy]
    default: str
    line: Line
    device: str = ""
    verdicts: Verdicts | None = None
    takes_references: bool = True
    draining: bool = False
    metrics: Metrics = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.line)

    async def verify(self, asked: VerifyRequest, client: str) -> VerifyAnswer:
        """The reward for a request.

        Raises:
            UsageError: The request is wrong, or its reference cannot judge.
            LineIsFull: Too many requests are waiting.
            TimeoutError: The deadline has passed.
        """
        start = time.monotonic()
        policy = self._policy(asked)
        problem = await asyncio.to_thread(self._problem, asked)
        try:
            kernel = _kernel_of(asked)
        except ValueError as error:
            found = malformed(first_line(error), policy.reward(None))
        else:
            async with asyncio.timeout(asked.deadline_s):
                found = await self._judged(asked, policy, problem, kernel, client)
        self.metrics.answers.labels(client, found.status).inc()
        self.metrics.known.inc(found.known)
        self.metrics.seconds.observe(time.monotonic() - start)
        return found

    async def answered(self, asked: VerifyRequest, client: str) -> Answered:
        """The answer to a request of a batch: a failure does not raise."""
        try:
            return await self.verify(asked, client)
        except (UsageError, LineIsFull, TimeoutError) as error:
            return Failure(error=_reason(error), retryable=not isinstance(error, UsageError))

    def require_ready(self) -> None:
        """Raises NotReady while it starts and while it drains."""
        if (status := self.health().status) != "ok":
            raise NotReady(f"the server is {status}")

    def health(self) -> Health:
        """What the server is doing."""
        status: State = "draining" if self.draining else "ok" if self.verdicts else "starting"
        return Health(status=status, device=self.device, waiting=self.line.waiting, working=self.line.working)

    def _policy(self, asked: VerifyRequest) -> RewardPolicy:
        name = asked.reward or self.default
        if name not in self.policies:
            raise UsageError(f"there is no reward {name!r}; the rewards are {', '.join(self.policies)}")
        if self.policies[name].needs_parent and asked.parent is None:
            raise UsageError(f"the reward {name} needs the parent's source as `parent`")
        return self.policies[name]

    def _problem(self, asked: VerifyRequest) -> Problem:
        if asked.problem is not None:
            return self.problems.named(asked.problem, asked.problem_keys)
        assert asked.reference is not None
        if not self.takes_references:
            raise UsageError("this server takes no references; name a problem as `problem`")
        return self.problems.stated(asked.reference, asked.problem_keys)

    async def _judged(
        self, asked: VerifyRequest, policy: RewardPolicy, problem: Problem, kernel: Kernel, client: str
    ) -> VerifyAnswer:
        verdicts = self.verdicts
        assert verdicts is not None

        async def evaluation(of: Kernel) -> tuple[Evaluation, bool]:
            found = await verdicts.ask(
                problem, of, thorough=asked.thorough, client=client, priority=asked.priority
            )
            if found.evaluation.status is Status.UNFIT_REFERENCE:
                raise UsageError(found.evaluation.cause)
            self.metrics.device_s.inc(0.0 if found.known else found.evaluation.device_s)
            return found.evaluation, found.known

        try:
            wanted = [kernel, _kernel(asked.parent)] if policy.needs_parent and asked.parent else [kernel]
            (own, known), *parents = await asyncio.gather(*map(evaluation, wanted))
        except (UnfitProblem, WorkerBroken) as error:
            raise UsageError(first_line(error)) from error
        reward = policy.reward(own, parents[0][0] if parents else None)
        return answer(own, reward, kernel.source, known=known)


def application(server: RewardServer) -> FastAPI:
    """The server's HTTP application. `GET /docs` describes it."""
    app = FastAPI(
        title="Ideatree rewards",
        description="The evaluator of GPU kernels as a reward for reinforcement learning.",
        version="1",
    )

    @app.post("/verify", responses={code: {"model": Failure} for code in (401, 413, 422, 429, 503, 504)})
    async def verify(asked: VerifyRequest, request: Request) -> VerifyAnswer:
        """The reward of one completion. Asking again is safe: the answer to the same content is kept."""
        server.require_ready()
        return await _while_connected(request, lambda: server.verify(asked, request.state.client))

    @app.post("/verify/batch", responses={code: {"model": Failure} for code in (401, 413, 422, 429, 503)})
    async def verify_batch(asked: BatchRequest, request: Request) -> BatchAnswer:
        """The rewards of many completions, in order. A wrong request has a failure in its place."""
        server.require_ready()
        server.line.require_room(len(asked.requests))

        async def all_of_them() -> BatchAnswer:
            client = request.state.client
            answers = await asyncio.gather(*(server.answered(each, client) for each in asked.requests))
            return BatchAnswer(answers=list(answers))

        return await _while_connected(request, all_of_them)

    @app.get("/health")
    async def health() -> Health:
        """Whether the server's process works."""
        return server.health()

    @app.get("/ready", responses={503: {"model": Health}})
    async def ready() -> JSONResponse:
        """Whether it takes requests: status 200, or 503 while it starts and while it drains."""
        found = server.health()
        return JSONResponse(found.model_dump(), 200 if found.status == "ok" else 503)

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        """The server's figures for Prometheus."""
        return PlainTextResponse(generate_latest(server.metrics.registry))

    @app.get("/rewards")
    async def rewards() -> dict[str, str]:
        """The reward policies, with their descriptions."""
        return {name: (type(each).__doc__ or "").strip() for name, each in server.policies.items()}

    _report_errors(app, server)
    return app


async def _while_connected(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """The result of the work, which is cancelled if the client goes away. Raises Gone."""
    working = asyncio.ensure_future(work())
    listening = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait([working, listening], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Gone
        return await working
    finally:
        for each in (working, listening):
            each.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _kernel_of(asked: VerifyRequest) -> Kernel:
    """The kernel of a request. Raises ValueError if its completion has none."""
    if asked.completion is not None:
        return read_kernel(asked.completion, asked.parent or "")
    assert asked.kernel is not None
    return _kernel(asked.kernel)


def _kernel(source: str) -> Kernel:
    return Kernel(source=source, language=language_of(source))


def _report_errors(app: FastAPI, server: RewardServer) -> None:
    """Turns errors into one line each."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(each) for each in first["loc"] if each != "body")
        return _failure(422, f"{place}: {first['msg']}".removeprefix(": "))

    @app.exception_handler(UsageError)
    async def wrong(_: Request, error: UsageError) -> JSONResponse:
        return _failure(422, _reason(error))

    @app.exception_handler(LineIsFull)
    async def full(request: Request, error: LineIsFull) -> JSONResponse:
        server.metrics.refused.labels(request.state.client).inc()
        return _failure(429, _reason(error), retry_after_s=error.retry_after_s)

    @app.exception_handler(TimeoutError)
    async def late(_: Request, error: TimeoutError) -> JSONResponse:
        return _failure(504, _reason(error), retry_after_s=1.0)

    @app.exception_handler(NotReady)
    async def not_ready(_: Request, error: NotReady) -> JSONResponse:
        return _failure(503, _reason(error), retry_after_s=5.0)

    @app.exception_handler(Gone)
    async def gone(_: Request, __: Gone) -> JSONResponse:
        return _failure(499, "the client went away")

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        logger.exception("a request failed", exc_info=error)
        return _failure(500, "the server failed; its log says why", retry_after_s=1.0)


def _reason(error: Exception) -> str:
    return "the deadline of the request has passed" if isinstance(error, TimeoutError) else first_line(error)


def _failure(status: int, why: str, *, retry_after_s: float | None = None) -> JSONResponse:
    headers = {} if retry_after_s is None else {"Retry-After": str(math.ceil(retry_after_s))}
    body = Failure(error=why, retryable=retry_after_s is not None)
    return JSONResponse(body.model_dump(), status, headers=headers)
