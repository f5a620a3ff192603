"""A resources server of NeMo Gym whose rewards are those of an Ideatree reward server."""

from __future__ import annotations

import json
from typing import Any

from ideatree_client import RewardClient, RewardError
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)

NO_VERDICT = "ideatree_kernels:no_verdict"
"""The kind of failure of a completion that could not be judged."""


class KernelsConfig(BaseResourcesServerConfig):
    """Where the rewards come from.

    Attributes:
        url: the reward server's address.
        key: its API key, if it needs one.
        reward: the reward policy; None for the server's default.
        patience_s: seconds after which a completion without a verdict is masked.
    """

    url: str
    key: str = ""
    reward: str | None = None
    patience_s: float = 1800.0


class KernelsRunRequest(BaseRunRequest):
    """A row. `request` is the JSON of `ideatree harvest format=rl`."""

    request: str


class KernelsVerifyRequest(KernelsRunRequest, BaseVerifyRequest):
    """A row with the model's answer."""


class KernelsVerifyResponse(BaseVerifyResponse):
    """The reward with the evaluator's status, the components of the reward, and the log."""

    status: str
    components: dict[str, Any]
    log: str


class KernelsResourcesServer(SimpleResourcesServer):
    """Judges one kernel per rollout. What could not be judged, because of the evaluator or the way to it, has
    `mask_sample` set."""

    config: KernelsConfig

    async def verify(self, body: KernelsVerifyRequest) -> KernelsVerifyResponse:
        """Judges the kernel in the model's answer."""
        client = RewardClient(
            self.config.url,
            key=self.config.key,
            reward=self.config.reward,
            patience_s=self.config.patience_s,
        )
        asked = {**json.loads(body.request), "completion": body.response.output_text}
        try:
            (answer,) = await client.verify_all([asked])
        except RewardError as error:
            answer = {"reward": None, "status": "", "components": {}, "log": "", "cause": str(error)}
        masked = answer["reward"] is None
        return KernelsVerifyResponse(
            **body.model_dump(),
            reward=answer["reward"] or 0.0,
            mask_sample=masked,
            failure_kind=NO_VERDICT if masked else None,
            failure_reason=answer["cause"] if masked else None,
            status=answer["status"],
            components=answer["components"] or {},
            log=answer["log"],
        )


if __name__ == "__main__":
    KernelsResourcesServer.run_webserver()
