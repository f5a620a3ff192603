"""Serves the evaluator as a reward over HTTP:

    ideatree rewards http=127.0.0.1:8000
    ideatree rewards http=0.0.0.0:8000 api_keys=keys.txt device=cuda reward=staged
    ideatree rewards http=127.0.0.1:8000 pool=folder pool.path=/shared/queue device=cuda

`POST /verify` takes a problem and a completion and returns its reward, `POST /verify/batch` many at once;
`GET /docs` describes all messages. `GET /health`, `/ready`, `/metrics` and `/rewards` show the server's
state. A verdict is kept in the folder `out` and used again while device, versions and settings stay the same.

A client that sends references runs code with this server's rights: set `references=false` if clients are not
trusted. Outside the loopback interface the server needs API keys, one per line of the file `api_keys` as
`NAME KEY`, or in the environment variable IDEATREE_API_KEYS as `NAME:KEY,NAME:KEY`.

SIGTERM and Ctrl-C end the server once the requests at work are answered, after `drain_s` at the latest. Exit
status 0: it ended by a signal; 1: its devices did not come up; 2: the call was wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig
from rich.console import Console

from evaluators.app.command import build, command, compose_config, log_to, positive, say
from evaluators.app.config import (
    DEVICE_HELP,
    NO_FOLDER,
    RayConfig,
    group,
    hydra_settings,
    options_of,
    section,
)
from evaluators.app.device_config import host_or_queue, settle_device
from evaluators.base.cause import first_line
from evaluators.base.option import option
from evaluators.base.own_version import own_version
from evaluators.base.usage_error import UsageError
from evaluators.device.child_processes import WorkerBroken
from evaluators.queue.queue_evaluator import QueueEvaluator
from evaluators.records.problem import content_id
from evaluators.rewards.line import Line
from evaluators.rewards.requested_problems import RequestedProblems
from evaluators.rewards.reward import RewardPolicy
from evaluators.rewards.verdicts import Verdicts
from evaluators.scheduler.pool import Pool

FIRST_PROBLEM = "level1/softmax"
"""Opened at the start, to learn about the devices."""
FACTS = ("device", "driver", "torch", "cuda", "triton", "compiler", "nvcc", "isolation")
"""The facts with which a verdict stays valid."""
KEYS = "IDEATREE_API_KEYS"


@dataclass
class RewardConfig:
    """A config with a reward policy alone."""

    reward: Any = group("log_speedup")


@dataclass
class RewardServerConfig:
    """The config of the command."""

    http: str = option(MISSING, "address to listen on, HOST:PORT; a port of 0 takes any free one")
    evaluator: Any = group("default")
    pool: Any = group("local")
    reward: Any = group("log_speedup")
    device: str = option("auto", DEVICE_HELP)
    out: str = option("outputs/rewards", "folder in which verdicts are kept")
    api_keys: str = option("", "file with a client's name and API key per line")
    references: bool = option(True, "let clients send references, whose code runs with this server's rights")
    at_once: int | None = option(None, "measurements at a time, builds included; null: devices and cores")
    waiting: int = option(1024, "measurements that may wait; further requests get status 429")
    connections: int = option(1024, "connections at a time; further ones get status 503")
    body_bytes: int = option(4 * 2**20, "largest request in bytes")
    body_s: float = option(30.0, "seconds that a request may take to arrive")
    drain_s: int = option(600, "seconds for which the end waits for requests at work")
    ray: RayConfig = section(RayConfig)
    hydra: Any = hydra_settings(NO_FOLDER)


@command("evaluators.rewards", RewardServerConfig, __doc__)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    console = Console(stderr=True)
    log_to(console)
    positive(config, "waiting", "connections", "body_bytes", "drain_s")
    keys = _keys(config)
    host, port = _address(config, keys)
    settle_device(config)
    try:
        from evaluators.rewards.http_server import HttpLimits, serve_http
        from evaluators.rewards.server import RewardServer
    except ModuleNotFoundError as error:
        raise UsageError(f"the server needs {error.name}: pip install 'ideatree[train]'") from error
    problems = RequestedProblems(config.device)
    with _judge(config) as (judge, at_once):
        server = RewardServer(
            problems=problems,
            policies=_policies(config),
            default=HydraConfig.get().runtime.choices["reward"],
            line=Line(config.at_once or at_once, config.waiting),
            takes_references=config.references,
        )

        async def start() -> str:
            """Waits for the devices; returns what to say then."""
            facts = await judge.describe(problems.named(FIRST_PROBLEM, {}))
            path = Path(str(config.out)) / "verdicts.jsonl"
            server.device = facts.get("device", str(config.device))
            server.verdicts = Verdicts(judge, server.line, path, _valid_for(facts, config))
            return f"rewards from {server.device}, verdicts in {path}"

        limits = HttpLimits(
            keys=keys,
            body_bytes=config.body_bytes,
            body_s=config.body_s,
            connections=config.connections,
            drain_s=config.drain_s,
        )
        try:
            asyncio.run(
                serve_http(server, start, host, port, limits, on_line=lambda line: say(console, line))
            )
        except WorkerBroken as error:
            say(console, f"the devices did not come up: {first_line(error)}")
            return 1
    return 0


def _valid_for(facts: Mapping[str, str], config: DictConfig) -> str:
    """Identifies device, versions and settings."""
    return content_id(
        own_version(), repr(build(config.evaluator)), *(f"{name}={facts.get(name)}" for name in FACTS)
    )


@contextlib.contextmanager
def _judge(config: DictConfig) -> Iterator[tuple[Pool | QueueEvaluator, int]]:
    """What measures, and how many measurements it works on at a time. Raises UsageError."""
    found = host_or_queue(config)
    if isinstance(found, QueueEvaluator):
        yield found, found.outstanding
        return
    with Pool(found) as pool:
        yield pool, found.devices + found.cores


def _policies(config: DictConfig) -> dict[str, RewardPolicy]:
    """All policies by name, the chosen one with the keys of the call."""
    choices = HydraConfig.get().runtime.choices
    found = {
        name: build(compose_config(RewardConfig, [f"reward={name}"]).reward) for name in options_of("reward")
    }
    return {**found, choices["reward"]: build(config.reward)}


def _address(config: DictConfig, keys: Mapping[str, str]) -> tuple[str, int]:
    host, _, port = str(config.http).rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"http={config.http} is not an address; write HOST:PORT, such as 127.0.0.1:8000")
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if not is_local and not keys:
        raise UsageError(
            f"http={config.http} can be reached from other machines: give API keys with api_keys=FILE or "
            f"{KEYS}, or listen on 127.0.0.1"
        )
    return host, int(port)


def _keys(config: DictConfig) -> dict[str, str]:
    """The clients' names by key. Raises UsageError."""
    pairs = [each.partition(":") for each in os.environ.get(KEYS, "").split(",") if each.strip()]
    stated = [(name.strip(), key.strip()) for name, _, key in pairs]
    if config.api_keys:
        try:
            lines = Path(str(config.api_keys)).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeError) as error:
            raise UsageError(f"api_keys={config.api_keys} cannot be read: {first_line(error)}") from error
        words = [each.split() for each in lines if each.strip() and not each.startswith("#")]
        if wrong := next((each for each in words if len(each) != 2), None):
            raise UsageError(
                f"api_keys={config.api_keys}: a line has {len(wrong)} words; it needs a name and a key"
            )
        stated += [(name, key) for name, key in words]
    if any(not name or not key for name, key in stated):
        raise UsageError(f"{KEYS} has an entry without a name or a key; write NAME:KEY,NAME:KEY")
    return {key: name for name, key in stated}
