"""Puts a reward server under load: right, wrong, cheating, malformed and hanging completions at once.

    python benchmarks/rewards.py [device=auto] [count=256] [clients=64] [problems=6] [spread=100] [seed=0]
        [key=value ...]

The completions are those of the catalogue (`tests/evaluators/catalogue`) for its `problems` problems with the
most cheats, in random order: of ten, four are honest kernels, three cheats, two malformed and one a
repetition. Two more hang. Further keys are those of `ideatree rewards`.

1. `clients` clients send `count` completions. After half of the answers the server is killed with SIGKILL and
   started again; clients ask again until they have an answer. It prints verdicts per minute, the latencies,
   and the rewards by kind.
2. All clients ask for new measurements and close their connections at once. It prints how long the server
   works on.
3. The honest kernel that earned most is measured `spread` times. It prints the spread of each reward policy.

The exit status is 0 if every completion has the answer to its own kernel, no cheat earns more than a kernel
without a gain, no malformed or hanging one earns anything, and the server is idle at the end.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx2

from evaluators.app.command import choose_device
from tests.evaluators.catalogue import NO_GAIN, Fixture, fixtures
from tests.evaluators.catalogue.problems import problem

OPTIONS = {"device": "auto", "count": "256", "clients": "64", "problems": "6", "spread": "100", "seed": "0"}
POLICIES = ("log_speedup", "correctness", "roofline_share", "staged", "improvement")
HANGS = """import torch


class ModelNew(torch.nn.Module):
    def forward(self, *x):
        while True:
            pass
"""
RETRIED = (429, 503, 504)
NOTHING_GAINED = 0.2 * 1.25
"""The reward of a correct kernel without a gain, and a quarter for the noise of a busy machine."""
EVERY_S = 10.0
"""Seconds between two lines of progress."""
IDLE_S = 60.0
"""Seconds within which the server must be idle after its clients have gone."""


@dataclass(kw_only=True)
class Completion:
    """One completion, and what came of it."""

    kind: str
    text: str
    fixture: Fixture
    answer: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    asked: int = 0

    def request(self, device: str) -> dict[str, Any]:
        """The body of the request."""
        found = problem(self.fixture.problem, device)
        keys = {"sizes": dict(found.overrides), "tolerance": found.tolerance, "libraries": found.libraries}
        keys |= {"dtype": found.dtype, "precision": found.precision}
        return {"reference": found.source, "problem_keys": keys, "completion": self.text}

    @property
    def complaint(self) -> str:
        """What is wrong with the answer; "" if nothing is."""
        sent, got = self.text.strip(), (self.answer.get("kernel") or "").strip()
        reward = self.answer.get("reward")
        if not self.answer or reward is None:
            return f"no reward: {self.answer}"
        if self.kind != "malformed" and got != sent:
            return "the answer is to another kernel"
        if self.kind in ("malformed", "hanging") and reward != 0:
            return f"earned {reward:.3g}"
        allowed = NOTHING_GAINED if NO_GAIN in self.fixture.verdicts else 0.0
        if self.kind == "cheating" and reward > allowed:
            return f"earned {reward:.3g} as {self.answer['status']}"
        return ""


class Server:
    """The command as a process, which can be killed and started again."""

    def __init__(self, device: str, folder: Path, more: Sequence[str]) -> None:
        self._call = [
            sys.executable,
            "-m",
            "evaluators.serve",
            f"device={device}",
            f"out={folder}/kept",
            *more,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "log"
        self.url = "http://127.0.0.1:0"

    def start(self) -> None:
        """Starts it and waits until it is ready."""
        port = self.url.rpartition(":")[2]
        call = [*self._call, f"http=127.0.0.1:{port}"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(call, stderr=log)
        while not (found := re.search(r"http://[\d.:]+", self._log.read_text())):
            if self._process.poll() is not None:
                raise SystemExit(f"the server did not start: {self._log.read_text()}")
            time.sleep(0.1)
        self.url = found[0]

    def end(self, number: signal.Signals) -> float:
        """Sends a signal; returns the seconds until it has ended."""
        assert self._process is not None
        start = time.monotonic()
        self._process.send_signal(number)
        self._process.wait()
        return time.monotonic() - start


def mixed(device: str, count: int, problems: int, seed: int) -> list[Completion]:
    """The completions, in random order."""
    chance = random.Random(seed)
    known = [each for each in fixtures() if device in each.devices]
    with_honest = {each.problem for each in known if each.group == "honest"}
    cheated = Counter(each.problem for each in known if each.problem in with_honest)
    chosen = {name for name, _ in cheated.most_common(problems)}
    known = [each for each in known if each.problem in chosen]
    honest = [each for each in known if each.group == "honest"]
    cheats = [each for each in known if each.group not in ("honest", "not_stopped")]
    chance.shuffle(cheats)
    found: list[Completion] = []
    for number in range(count - 2):
        share = number % 10
        if share < 4:
            each, kind = honest[number % len(honest)], "honest"
        elif share < 7:
            each, kind = cheats[(3 * (number // 10) + share - 4) % len(cheats)], "cheating"
        elif share < 9:
            each, kind = honest[0], "malformed"
        else:
            found.append(Completion(kind="repeated", text=found[-9].text, fixture=found[-9].fixture))
            continue
        text = f"{each.source}\n# completion {number}\n"
        found.append(
            Completion(kind=kind, text=text if kind != "malformed" else text[: len(text) // 3], fixture=each)
        )
    hanging = [
        Completion(kind="hanging", text=f"{HANGS}# {number}\n", fixture=honest[0]) for number in (1, 2)
    ]
    chance.shuffle(found)
    return [*found[: count // 4], *hanging, *found[count // 4 :]]


async def ask(client: httpx2.AsyncClient, completion: Completion, device: str) -> None:
    """Asks until there is an answer."""
    start = time.monotonic()
    while not completion.answer or completion.answer.get("retryable"):
        completion.asked += 1
        try:
            answered = await client.post("/verify", json=completion.request(device))
        except httpx2.TransportError:
            await asyncio.sleep(1.0)
            continue
        if answered.status_code in RETRIED:
            await asyncio.sleep(float(answered.headers.get("retry-after", "1")))
            continue
        completion.answer = answered.json()
    completion.seconds = time.monotonic() - start


async def load(server: Server, completions: Sequence[Completion], clients: int, device: str) -> float:
    """Sends all completions, and kills the server once; returns the seconds."""
    waiting = list(reversed(completions))

    def answered() -> int:
        return sum(bool(each.answer) for each in completions)

    async def one_client() -> None:
        async with httpx2.AsyncClient(base_url=server.url, timeout=900) as client:
            while waiting:
                await ask(client, waiting.pop(), device)

    async def killer() -> None:
        while answered() < len(completions) // 2:
            await asyncio.sleep(0.2)
        await asyncio.to_thread(server.end, signal.SIGKILL)
        await asyncio.to_thread(server.start)

    async def progress() -> None:
        while waiting or answered() < len(completions):
            print(f"{answered()} of {len(completions)} answers", file=sys.stderr, flush=True)
            await asyncio.sleep(EVERY_S)

    start = time.monotonic()
    await asyncio.gather(killer(), progress(), *(one_client() for _ in range(clients)))
    return time.monotonic() - start


async def vanish(server: Server, completions: Sequence[Completion], device: str) -> float:
    """Seconds until the server is idle after all clients have gone at once."""
    async with httpx2.AsyncClient(base_url=server.url, timeout=900) as client:
        asking = [
            asyncio.create_task(client.post("/verify", json=each.request(device))) for each in completions
        ]
        await asyncio.sleep(5.0)
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    start = time.monotonic()
    async with httpx2.AsyncClient(base_url=server.url) as client:
        while time.monotonic() - start < IDLE_S:
            health = (await client.get("/health")).json()
            if not health["waiting"] + health["working"]:
                break
            await asyncio.sleep(0.1)
    return time.monotonic() - start


async def spread_of(
    server: Server, completion: Completion, times: int, device: str
) -> dict[str, list[float]]:
    """The rewards of as many measurements of one kernel, by policy."""
    parent = f"{completion.text}# the parent\n"
    found: dict[str, list[float]] = {name: [] for name in POLICIES}
    async with httpx2.AsyncClient(base_url=server.url, timeout=900) as client:
        for number in range(times):
            body = {**completion.request(device), "completion": f"{completion.text}# measured {number}\n"}
            for name in POLICIES:
                answered = await client.post("/verify", json={**body, "reward": name, "parent": parent})
                if (reward := answered.json().get("reward")) is not None:
                    found[name].append(reward)
    return found


def report(completions: Sequence[Completion], seconds: float) -> None:
    """Prints the table of the load."""
    latencies = statistics.quantiles([each.seconds for each in completions], n=100)
    print(
        f"{len(completions)} completions in {seconds:.0f} s: {60 * len(completions) / seconds:.0f} a minute"
    )
    measured = {each.text for each in completions if each.answer.get("status") != "malformed"}
    print(f"  {len(measured)} measured: {60 * len(measured) / seconds:.0f} a minute")
    print("  latency: " + ", ".join(f"p{at} {latencies[at - 1]:.1f} s" for at in (50, 95, 99)))
    print(f"  asked again {sum(each.asked - 1 for each in completions)} times")
    for kind in dict.fromkeys(each.kind for each in completions):
        own = [each for each in completions if each.kind == kind]
        rewards = [each.answer["reward"] for each in own if each.answer.get("reward") is not None]
        statuses = Counter(each.answer.get("status", "none") for each in own)
        words = ", ".join(f"{name} {number}" for name, number in statuses.most_common())
        print(
            f"  {kind:<10}{len(own):>4}  reward {min(rewards):.2f} to {max(rewards):.2f}  {words}", flush=True
        )


def main(arguments: Sequence[str]) -> int:
    """Runs the three parts; returns the exit status."""
    given = dict(each.split("=", 1) for each in arguments)
    options = {**OPTIONS, **{key: value for key, value in given.items() if key in OPTIONS}}
    more = [f"{key}={value}" for key, value in given.items() if key not in OPTIONS]
    device, _ = choose_device(options["device"], clustered=False)
    completions = mixed(device, int(options["count"]), int(options["problems"]), int(options["seed"]))
    with tempfile.TemporaryDirectory() as folder:
        server = Server(device, Path(folder), more)
        server.start()
        seconds = asyncio.run(load(server, completions, int(options["clients"]), device))
        report(completions, seconds)
        complaints = [
            f"{each.kind} {each.fixture.id}: {each.complaint}" for each in completions if each.complaint
        ]
        new = [
            Completion(kind=each.kind, text=f"{each.text}# new\n", fixture=each.fixture)
            for each in sorted(completions, key=lambda each: -(each.answer.get("reward") or 0.0))
            if each.kind == "honest"
        ]
        idle_s = asyncio.run(vanish(server, new[: int(options["clients"])], device))
        print(f"idle {idle_s:.1f} s after all clients vanished")
        if idle_s >= IDLE_S:
            complaints.append("the server works on without clients")
        rewards = asyncio.run(spread_of(server, new[0], int(options["spread"]), device))
        for name, values in rewards.items():
            if len(values) > 1:
                low, middle, high = min(values), statistics.median(values), max(values)
                print(
                    f"{name:<16}{len(values):>4} times: {low:.3f} to {high:.3f}, median {middle:.3f}, "
                    f"standard deviation {statistics.stdev(values):.4f}"
                )
        print(f"ended {server.end(signal.SIGTERM):.1f} s after SIGTERM")
    for each in complaints:
        print(f"WRONG {each}")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
