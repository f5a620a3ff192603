"""What a reward server's clients send and get, as JSON."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from evaluators.records.evaluation import Evaluation
from evaluators.rewards.reward import Reward

MOST_LOG = 8000
"""Characters of a log that an answer contains; the end, where errors are."""


class Message(BaseModel):
    """A message with known fields only."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class VerifyRequest(Message):
    """Asks for the reward of one completion, or of a kernel."""

    problem: str | None = Field(
        None, description="name of a problem, such as level1/softmax or kernelbench/level1/23"
    )
    reference: str | None = Field(
        None, description="instead: the text of a reference in KernelBench's format"
    )
    problem_keys: dict[str, Any] = Field(
        default_factory=dict,
        description="other values for the problem's keys sizes, dtype, tolerance, precision, …",
    )
    completion: str | None = Field(
        None, description="a model's answer, in which the kernel is found as in a search"
    )
    kernel: str | None = Field(None, description="instead: the text of a kernel's file")
    parent: str | None = Field(
        None, description="text of the kernel that the completion improves; edits of it are applied"
    )
    reward: str | None = Field(None, description="reward policy; by default the server's")
    thorough: bool = Field(False, description="measure longer, and compare with torch.compile")
    priority: int = Field(0, ge=0, le=9, description="higher ones are served first")
    deadline_s: float = Field(
        600.0, gt=0, le=3600, description="seconds after which the answer is not needed any more"
    )

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        for one, other in (("problem", "reference"), ("completion", "kernel")):
            if (getattr(self, one) is None) == (getattr(self, other) is None):
                raise ValueError(f"give {one} or {other}, and not both")
        return self


class Times(Message):
    """Times of a correct kernel, in ms per call, with the speedup's 95 % interval."""

    kernel_ms: float
    eager_ms: float
    compile_ms: float | None
    speedup: float
    speedup_low: float
    speedup_high: float


class VerifyAnswer(Message):
    """The reward of one completion."""

    status: str = Field(
        description="status of the evaluation, or `malformed` for a completion without a kernel"
    )
    reward: float | None = Field(
        description="null if there is none, because the evaluator failed: mask it or ask again"
    )
    components: dict[str, float] = Field(description="what the reward was made of")
    retryable: bool = Field(default=False, description="whether asking again may give a reward")
    cause: str = Field(description="why the kernel failed, in one line")
    log: str = Field(description="the evaluator's log, the next observation in multi-turn training")
    timing: Times | None = None
    roofline_share: float | None = None
    kernel: str | None = Field(default=None, description="the kernel that was found in the completion")
    known: bool = Field(default=False, description="whether the verdict was known before")


class BatchRequest(Message):
    """Asks for many rewards at once."""

    requests: list[VerifyRequest] = Field(min_length=1, max_length=1024)


class Failure(Message):
    """A request that could not be answered."""

    error: str
    retryable: bool


class BatchAnswer(Message):
    """One answer or failure per request, in order."""

    answers: list[VerifyAnswer | Failure]


State = Literal["ok", "starting", "draining"]


class Health(Message):
    """Whether the server works."""

    status: State
    device: str
    waiting: int
    working: int


def malformed(reason: str, reward: Reward) -> VerifyAnswer:
    """The answer for a completion without a kernel."""
    return VerifyAnswer(
        status="malformed",
        reward=reward.value,
        components=dict(reward.components),
        cause=reason,
        log=reason,
    )


def answer(evaluation: Evaluation, reward: Reward, source: str, *, known: bool) -> VerifyAnswer:
    """The answer for a verdict."""
    timing = evaluation.timing
    times = Times(**{name: getattr(timing, name) for name in Times.model_fields}) if timing else None
    return VerifyAnswer(
        status=evaluation.status.value,
        reward=reward.value,
        components=dict(reward.components),
        retryable=not evaluation.status.is_of_the_kernel,
        cause=evaluation.cause,
        log=evaluation.log[-MOST_LOG:],
        timing=times,
        roofline_share=evaluation.roofline_share,
        kernel=source,
        known=known,
    )
