"""An environment of several turns: write a kernel, read the evaluator's log, write a better one."""

from __future__ import annotations

import json
from typing import Any

from ideatree_client import RewardClient, observation


class KernelRepair:
    """An environment for TRL's `environment_factory`: `functools.partial(KernelRepair, url)`. The model calls
    `submit_kernel` as often as it likes; the episode's reward is that of its best kernel.

    Args:
        url: The reward server's address.
        key: The API key, if the server needs one.
        reward: The reward policy; None for the server's default.
    """

    def __init__(self, url: str, *, key: str = "", reward: str | None = None) -> None:
        self._client = RewardClient(url, key=key, reward=reward)
        self._request: dict[str, Any] = {}
        self._rewards: list[float] = []

    def reset(self, request: str = "{}", **_: Any) -> str:
        """Begins an episode with a row of `ideatree harvest format=rl`."""
        self._request, self._rewards = json.loads(request), []
        return "Submit your kernel with submit_kernel. If it fails, read the log and submit a better one."

    def submit_kernel(self, source: str) -> str:
        """Builds, checks and times a kernel.

        Args:
            source: The complete Python file, which defines the class ModelNew.

        Returns:
            The verdict, with the evaluator's log if the kernel failed, or its speedup over PyTorch.
        """
        answer = self._client.verify({**self._request, "completion": source})
        if answer["reward"] is not None:
            self._rewards.append(answer["reward"])
        return observation(answer)

    def get_reward(self) -> float:
        """The reward of the best kernel that was submitted; 0 without one."""
        return max(self._rewards, default=0.0)
