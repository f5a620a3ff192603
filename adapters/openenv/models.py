"""What an agent sends and sees."""

from pydantic import Field

from openenv.core.env_server.types import Action, Observation, State


class KernelAction(Action):
    """One answer of a model."""

    completion: str = Field(description="A kernel, or a whole answer with the kernel in a code fence")


class KernelObservation(Observation):
    """The task after a reset, and the verdict after a step."""

    prompt: list[dict[str, str]] = Field(default_factory=list, description="The task, as chat messages")
    feedback: str = Field(default="", description="The verdict in words, with the evaluator's log")
    status: str = Field(default="", description="The verdict: correct, or how the kernel failed")


class KernelState(State):
    """An episode."""

    split: str = ""
    index: int = 0
    best_reward: float = 0.0
