"""The environment: a task from a dataset, and the verdicts of a reward server."""

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from ideatree_client import Episode, RewardClient

from openenv.core.env_server.interfaces import Environment

try:
    from ..models import KernelAction, KernelObservation, KernelState
except ImportError:  # the folder itself is on the path, as in a container of OpenEnv
    from models import KernelAction, KernelObservation, KernelState


class KernelEnvironment(Environment[KernelAction, KernelObservation, KernelState]):
    """Rewards the kernel in each answer. An episode ends with a correct kernel or after the last turn. Its
    rewards add up to that of its best kernel. An answer that cannot be judged ends it with the reward null.

    Environment variables:
        IDEATREE_TASKS: folder with `train.jsonl` and other splits, of `ideatree harvest format=rl`.
        IDEATREE_REWARDS: address of the reward server.
        IDEATREE_KEY, IDEATREE_POLICY: API key and reward policy, if not the server's defaults.
        IDEATREE_TURNS: answers in an episode (1).
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._client = RewardClient(
            os.environ.get("IDEATREE_REWARDS", "http://127.0.0.1:8000"),
            key=os.environ.get("IDEATREE_KEY", ""),
            reward=os.environ.get("IDEATREE_POLICY") or None,
        )
        self._turns = int(os.environ.get("IDEATREE_TURNS", "1"))
        self._state, self._episode = KernelState(), Episode(self._turns)
        self._task: dict[str, Any] | None = None

    def list_splits(self) -> list[str]:
        """The names of the dataset's files."""
        return sorted(each.stem for each in _folder().glob("*.jsonl"))

    def num_tasks(self, split: str) -> int:
        """The number of tasks of a split."""
        return len(_tasks(split))

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """All tasks of a split, without their prompts."""
        return [self.get_task(split, index) for index in range(self.num_tasks(split))]

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """One task, without its prompt. Raises IndexError."""
        task = _tasks(split)[index]
        return {"id": f"{split}-{index}", "index": index, "problem": task["problem"], "kind": task["kind"]}

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        """Tasks of a split as a slice has them, without their prompts."""
        return self.list_tasks(split)[start:stop]

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> KernelObservation:
        """Begins an episode with the task `index` of `split` (by default the first one of `train`)."""
        split, index = kwargs.get("split", "train"), kwargs.get("index", seed or 0)
        tasks = _tasks(split)
        index %= len(tasks)
        self._task = tasks[index]
        self._state = KernelState(episode_id=episode_id or str(uuid4()), split=split, index=index)
        self._episode = Episode(self._turns)
        return KernelObservation(prompt=self._task["prompt"])

    def step(self, action: KernelAction, timeout_s: float | None = None, **kwargs: Any) -> KernelObservation:
        """Not used: a step waits for a verdict, so that servers call `step_async`."""
        raise NotImplementedError

    async def step_async(
        self, action: KernelAction, timeout_s: float | None = None, **kwargs: Any
    ) -> KernelObservation:
        """Judges an answer. Raises RewardError: the request is wrong, or the server cannot be reached."""
        if self._task is None:
            self.reset()
        assert self._task is not None
        state, episode, request = self._state, self._episode, json.loads(self._task["request"])
        (answer,) = await self._client.verify_all([{**request, "completion": action.completion}])
        gained = episode.take(answer)
        state.step_count, state.best_reward = episode.turns, episode.best
        return KernelObservation(
            prompt=self._task["prompt"],
            feedback=episode.feedback(answer),
            status=answer["status"],
            reward=gained,
            done=episode.done,
            metadata={"masked": gained is None, "components": answer["components"]},
        )

    @property
    def state(self) -> KernelState:
        """The episode so far."""
        return self._state


def _folder() -> Path:
    return Path(os.environ.get("IDEATREE_TASKS", "datasets/rl/jsonl"))


def _tasks(split: str) -> list[dict[str, Any]]:
    return _read(_folder() / f"{split}.jsonl")


@lru_cache
def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
