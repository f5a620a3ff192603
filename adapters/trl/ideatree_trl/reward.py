"""A reward function for TRL's trainers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from ideatree_client import RewardClient

RewardFunction = Callable[..., Awaitable[list[float | None]]]


def kernel_reward(
    url: str, *, reward: str | None = None, key: str = "", patience_s: float = 1800.0, at_once: int = 64
) -> RewardFunction:
    """A reward function for `GRPOTrainer(reward_funcs=…)`.

    The dataset needs a column `request`, as `ideatree harvest format=rl` writes it: JSON with the fields of
    a request except for the completion.

    Args:
        url: The reward server's address.
        reward: The reward policy; None for the server's default.
        key: The API key, if the server needs one.
        patience_s: Seconds after which to give up on a completion.
        at_once: Completions at a time.

    Returns:
        A coroutine function with a reward per completion; None for one that could not be judged. It logs
        the share of correct and of malformed completions as metrics.
    """
    client = RewardClient(url, key=key, reward=reward, patience_s=patience_s, at_once=at_once)

    async def ideatree(
        completions: list[Any],
        request: list[str],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        requests = [
            {**json.loads(asked), "completion": _text_of(completion)}
            for asked, completion in zip(request, completions, strict=True)
        ]
        answers = await client.verify_all(requests)
        if log_metric is not None and answers:
            for status in ("correct", "malformed"):
                share = sum(each["status"] == status for each in answers) / len(answers)
                log_metric(f"kernels_{status}", share)
        return [each["reward"] for each in answers]

    return ideatree


def _text_of(completion: str | list[dict[str, Any]]) -> str:
    """The text of a completion: the last message's, if it is a conversation."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else ""
    return content if isinstance(content, str) else json.dumps(content)
