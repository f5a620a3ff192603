"""Tasks for kernels, rewarded by an Ideatree reward server."""

import json
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from ideatree_client import RewardClient


class KernelData(vf.TaskData):
    """One task: its prompt, and the fields of the request for its reward."""

    request: dict[str, Any]


class KernelTaskConfig(vf.TaskConfig):
    """How answers are rewarded."""

    url: str = "http://127.0.0.1:8000"
    """Address of the reward server."""
    key: str = ""
    """API key, if the server needs one."""
    policy: str = ""
    """Reward policy; empty: the server's default."""
    patience_s: float = 1800.0
    """Seconds after which to give up on an answer."""


class KernelTask(vf.Task[KernelData, vf.State, KernelTaskConfig]):
    """Asks for one kernel."""

    @vf.reward(weight=1.0)
    async def kernel(self, trace: vf.Trace) -> float:
        """The reward of the kernel in the last reply. Raises RewardError if it could not be judged."""
        config = self.config
        client = RewardClient(config.url, key=config.key, reward=config.policy, patience_s=config.patience_s)
        answer = await client.judged({**self.data.request, "completion": trace.last_reply})
        trace.record_metric("correct", float(answer["status"] == "correct"))
        trace.record_metric("malformed", float(answer["status"] == "malformed"))
        if answer["timing"]:
            trace.record_metric("speedup", answer["timing"]["speedup"])
        return float(answer["reward"])


class KernelTasksetConfig(vf.TasksetConfig):
    """Which tasks there are."""

    tasks: Path = Path("datasets/rl/jsonl/train.jsonl")
    """Rows of `ideatree harvest format=rl`, as JSON lines."""
    num_tasks: int | None = None
    """The number of tasks; None for all."""
    task: KernelTaskConfig = KernelTaskConfig()


class KernelTaskset(vf.Taskset[KernelTask, KernelTasksetConfig]):
    """The tasks in a file."""

    def load(self) -> list[KernelTask]:
        """One task per row."""
        lines = self.config.tasks.read_text(encoding="utf-8").splitlines()[: self.config.num_tasks]
        return [KernelTask(_data(json.loads(line)), self.config.task) for line in lines]


def _data(row: dict[str, Any]) -> KernelData:
    texts = {each["role"]: each["content"] for each in row["prompt"]}
    return KernelData(
        prompt=texts["user"],
        system_prompt=texts.get("system"),
        name=row.get("problem"),
        request=json.loads(row["request"]),
    )
