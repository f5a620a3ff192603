"""A client of Ideatree's reward server, which waits where the server asks it to."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

__all__ = ["Episode", "RewardClient", "RewardError", "observation"]

LATER = (408, 429, 503, 504)
"""Statuses after which the same request may succeed."""
MOST_LOG = 4000
"""Characters of a log that a model is told."""


class RewardError(Exception):
    """The server refused a request, or could not be reached in time. The message is one line."""


class RewardClient:
    """Asks for rewards. Lost connections, a full line and failures of the evaluator are tried again: the same
    content is measured once.

    Args:
        url: The server's address.
        key: The API key, if the server needs one.
        reward: The reward policy; None for the server's default.
        patience_s: Seconds after which to give up on a request.
        at_once: Requests at a time.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        reward: str | None = None,
        patience_s: float = 1800.0,
        at_once: int = 64,
    ) -> None:
        self._url, self._patience_s, self._at_once = url.rstrip("/"), patience_s, at_once
        self._policy = {"reward": reward} if reward else {}
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def verify_all(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The server's answers, in order; one whose `reward` is null could not be judged.

        Raises:
            RewardError: a request is wrong, or the server cannot be reached.
        """
        slots = asyncio.Semaphore(self._at_once)
        async with httpx.AsyncClient(timeout=self._patience_s, headers=self._headers) as http:

            async def one(request: dict[str, Any]) -> dict[str, Any]:
                async with slots:
                    return await self._verify(http, request)

            return await asyncio.gather(*map(one, requests))

    async def judged(self, request: dict[str, Any]) -> dict[str, Any]:
        """One answer with a reward. Raises RewardError, also if the completion could not be judged."""
        (answer,) = await self.verify_all([request])
        if answer["reward"] is None:
            raise RewardError(f"the completion could not be judged: {answer['cause']}")
        return answer

    def verify(self, request: dict[str, Any]) -> dict[str, Any]:
        """One answer, for programs without an event loop. Raises RewardError."""
        return asyncio.run(self.verify_all([request]))[0]

    async def _verify(self, http: httpx.AsyncClient, request: dict[str, Any]) -> dict[str, Any]:
        end, reason = time.monotonic() + self._patience_s, ""
        answer: dict[str, Any] = {}
        while time.monotonic() < end:
            pause_s = 1.0
            try:
                response = await http.post(f"{self._url}/verify", json={**request, **self._policy})
            except httpx.TransportError as error:
                reason = f"{self._url} cannot be reached: {error or type(error).__name__}"
            else:
                if response.status_code == 200:
                    answer = response.json()
                    if not answer["retryable"]:
                        return answer
                    reason = answer["cause"]
                elif response.status_code in LATER:
                    reason = response.json()["error"]
                    pause_s = float(response.headers.get("retry-after", pause_s))
                else:
                    raise RewardError(f"the server refused a request: {_words(response)}")
            await asyncio.sleep(min(pause_s, max(end - time.monotonic(), 0.0)))
        if answer:
            return answer  # not judged: its reward is null
        raise RewardError(f"no answer within {self._patience_s:g} s: {reason}")


def _words(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code}"


def observation(answer: dict[str, Any]) -> str:
    """What a model is told about its kernel: the speedup of a correct one, or how it failed, with the log."""
    timing = answer["timing"]
    if timing is None:
        return f"{answer['status']}: {answer['log'][-MOST_LOG:]}"
    low, high = timing["speedup_low"], timing["speedup_high"]
    return f"correct: {timing['speedup']:.3g} [{low:.3g}, {high:.3g}] times as fast as eager PyTorch"


class Episode:
    """The turns of one episode. Their rewards add up to that of its best kernel. It ends with a correct
    kernel, with an answer that could not be judged, or after the last turn.

    Args:
        most_turns: Answers after which it ends.

    Attributes:
        turns: The answers so far.
        best: The reward of the best kernel so far, 0 without one.
        done: Whether it has ended.
    """

    def __init__(self, most_turns: int) -> None:
        self._most_turns, self.turns, self.best, self.done = most_turns, 0, 0.0, False

    def take(self, answer: dict[str, Any]) -> float | None:
        """The reward of the turn with this answer of the server; None if it could not be judged."""
        reward, before = answer["reward"], self.best
        self.turns += 1
        self.best = max(reward or 0.0, before)
        self.done = reward is None or answer["status"] == "correct" or self.turns >= self._most_turns
        return None if reward is None else self.best - before

    def feedback(self, answer: dict[str, Any]) -> str:
        """What the model is told about its kernel and, unless the episode has ended, asked next."""
        return observation(answer) + ("" if self.done else "\nWrite the complete corrected file.")
