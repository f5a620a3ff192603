"""A client of the environment."""

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult

from .models import KernelAction, KernelObservation, KernelState


class KernelEnv(EnvClient[KernelAction, KernelObservation, KernelState]):
    """One session with a running environment. `.sync()` makes it a client without an event loop."""

    def _step_payload(self, action: KernelAction) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[KernelObservation]:
        seen = {**payload["observation"], **{name: payload.get(name) for name in ("reward", "done")}}
        observation = KernelObservation.model_validate(seen)
        return StepResult(observation=observation, reward=observation.reward, done=observation.done)

    def _parse_state(self, payload: dict[str, Any]) -> KernelState:
        return KernelState.model_validate(payload)
