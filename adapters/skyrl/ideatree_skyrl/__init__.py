"""Rewards from an Ideatree reward server for SkyRL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ideatree_client import Episode, RewardClient
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.envs.registration import register

NAME = "ideatree_kernels"


class KernelEnv(BaseTextEnv):
    """Rewards the kernel in each answer of the model. The episode ends with a correct kernel or after
    `max_turns`.

    Args:
        env_config: `url` of the server; optionally `key`, `reward` (a policy), `max_turns` (1), `patience_s`.
        extras: the row's fields, of which `request` has the JSON of `ideatree harvest format=rl`.

    Raises:
        KeyError: the config has no `url`, or the row no `request`.
    """

    def __init__(self, env_config: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
        super().__init__()
        self._client = RewardClient(
            env_config["url"],
            key=env_config.get("key", ""),
            reward=env_config.get("reward"),
            patience_s=env_config.get("patience_s", 1800.0),
        )
        self._request = json.loads(extras["request"])
        self.max_turns = env_config.get("max_turns", 1)
        self._episode = Episode(self.max_turns)

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Judges an answer. The rewards of an episode add up to that of its best kernel. An answer that
        could not be judged has the reward 0 and `metadata["masked"]`.

        Raises:
            RewardError: the request is wrong, or the server cannot be reached.
        """
        episode = self._episode
        answer = self._client.verify({**self._request, "completion": action})
        gained, self.turns = episode.take(answer), episode.turns
        told = [{"role": "user", "content": episode.feedback(answer)}]
        return BaseTextEnvStepOutput(
            observations=[] if episode.done else told,
            reward=gained or 0.0,
            done=episode.done,
            metadata={
                "status": answer["status"],
                "masked": gained is None,
                "components": answer["components"],
            },
            postprocessed_action=None,
        )

    def get_metrics(self) -> dict[str, Any]:
        """The reward of the best kernel, and the number of turns."""
        return {"best_reward": self._episode.best, "turns": self.turns}


register(id=NAME, entry_point="ideatree_skyrl:KernelEnv")
