"""Checks that a race changes no winner: the same searches by the playbook, with and without `race=true`.

    python benchmarks/race.py [count=16] [rounds=2] [ideas=2] [branch=4] [device=auto] [key=value ...]

Runs `count` pairs of searches, over four problems in turn (`SMALL`), each time with another seed; further
keys are those of `ideatree run`. On a CPU the problems are small and measured briefly (`BRIEFLY`), so that a
verdict takes about a second. The two of a pair have the same seed and the same limits. If their winners
differ, these are measured against each other in one session. For each pair it prints both confirmed speedups
with their 95 % intervals, how much faster the winner of the race was in that session, the number of verdicts
and of kernels left outpaced, and the device time of both searches. A pair agrees if the winners are the same
kernel, or one of the intervals (of the session, or the two confirmed ones) shows no difference. The exit
status is 0 when all pairs agree.
"""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console

from evaluators.app.command import build, compose_config
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Kernel
from evaluators.records.timing import paired_speedup
from evaluators.scheduler.local_host import LocalHost
from evaluators.scheduler.pool import Pool
from search.records.journal import recorded_state
from search.records.run_state import RunState
from search.run.config import RunConfig
from search.run.launch import search, settle
from search.run.specification import specification

SMALL = {
    "level1/matmul": {"size": 192},
    "level1/conv2d": {"batch": 1, "height": 63, "width": 63},
    "level1/softmax": {"batch": 16, "features": 2048},
    "level1/layernorm": {"batch": 2, "height": 32, "width": 32},
}
"""The problems, with their sizes on a CPU."""
BRIEFLY = (
    "problem.libraries=any",
    "comparisons=1",
    "evaluator.threads=1",
    "evaluator.max_calls=8",
    "evaluator.plan.max_s=0.5",
    "evaluator.thorough_plan.max_s=1",
)
OPTIONS = {"count": "16", "rounds": "2", "ideas": "2", "branch": "4"}
ALWAYS = ("wandb=off", "report=false", "library.use=false", "evaluator.compile_mode=")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two searches that differ only in `race`, and the speedup of the race's winner over the other one, with
    its 95 % interval; None if they are the same kernel or could not be compared."""

    title: str
    plain: RunState
    raced: RunState
    over: tuple[float, float, float] | None

    @property
    def agrees(self) -> bool:
        """Whether the winners are the same kernel, or do not differ beyond the error."""
        one, other = winner(self.plain), winner(self.raced)
        if one == other:
            return True
        mine, its = timing(self.raced), timing(self.plain)
        if self.over is not None and self.over[1] <= 1 <= self.over[2]:
            return True
        return bool(
            mine and its and mine.speedup_low <= its.speedup_high and its.speedup_low <= mine.speedup_high
        )

    def line(self) -> str:
        """The pair as a row of the table."""
        same = "same kernel" if winner(self.plain) == winner(self.raced) else "no comparison"
        over = "{:.2f}x [{:.2f}, {:.2f}]".format(*self.over) if self.over else same
        count = f"{self.raced.evaluations:3d} {self.raced.statuses[Status.OUTPACED]:8d}"
        seconds = f"{self.plain.device_s:7.1f} {self.raced.device_s:7.1f}"
        agrees = "yes" if self.agrees else "NO"
        figures = f"{shown(self.plain):<20} {shown(self.raced):<20} {over:<20}"
        return f"{self.title:<22} {figures} {count} {seconds}  {agrees}"


def winner(state: RunState) -> Kernel | None:
    """The kernel that won; None if there is no winner."""
    return state.finished.best.kernel if state.finished and state.finished.best else None


def timing(state: RunState) -> Timing | None:
    """The winner's final timing."""
    return state.finished.confirmed.timing if state.finished and state.finished.confirmed else None


def shown(state: RunState) -> str:
    """The winner's speedup with its interval."""
    found = timing(state)
    return f"{found.speedup:.2f}x [{found.speedup_low:.2f}, {found.speedup_high:.2f}]" if found else "none"


async def one_search(overrides: Sequence[str], folder: Path, pool: Pool) -> RunState:
    """The final state of the search with these overrides."""
    config = compose_config(RunConfig, overrides)
    settle(config, overrides)
    folder.mkdir(parents=True)
    await search(specification(config), folder, Console(file=io.StringIO()), signals=False, evaluator=pool)
    return recorded_state(folder)


async def compared(plain: RunState, raced: RunState, pool: Pool) -> tuple[float, float, float] | None:
    """See `Pair.over`."""
    one, other = winner(plain), winner(raced)
    if one is None or other is None or one.id == other.id or plain.started is None:
        return None
    found: list[Evaluation] = await pool.compare(plain.started.problem, [one, other], thorough=True)
    its, own = (each.timing for each in found)
    if its is None or own is None:
        return None
    return paired_speedup(own.kernel_samples_ms, its.kernel_samples_ms)


def search_of(number: int, race: bool, *, cpu: bool) -> list[str]:
    """The overrides of one of the searches, counted from 0."""
    name, seed = list(SMALL)[number % len(SMALL)], number // len(SMALL)
    sizes = [f"problem.sizes.{key}={value}" for key, value in SMALL[name].items()]
    return [
        f"problem={name}",
        f"seed={seed}",
        f"race={str(race).lower()}",
        *([*sizes, *BRIEFLY] if cpu else []),
    ]


async def run(count: int, overrides: Sequence[str]) -> list[Pair]:
    """Runs the pairs one after another, and prints each. Both searches of a pair go first in turn."""
    config = compose_config(RunConfig, [*search_of(0, False, cpu=False), *overrides])
    settle(config, overrides)
    cpu = config.device == "cpu"
    settings = build(compose_config(RunConfig, [*search_of(0, False, cpu=cpu), *overrides]).evaluator)
    pairs: list[Pair] = []
    print(
        f"{'problem, seed':<22} {'without a race':<20} {'with a race':<20} {'race over other':<20} ", end=""
    )
    print("all outpaced   device s, both  agree")
    with (
        Pool(LocalHost(settings=settings, on_gpu=not cpu)) as pool,
        tempfile.TemporaryDirectory() as place,
    ):
        for number in range(count):
            states: dict[bool, RunState] = {}
            for race in (False, True) if number % 2 else (True, False):
                own, folder = search_of(number, race, cpu=cpu), Path(place) / f"{number}-{race}"
                states[race] = await one_search([*own, *overrides], folder, pool)
            plain, raced = states[False], states[True]
            assert plain.started is not None
            title = f"{plain.started.problem.name}, {plain.started.seed}"
            over = await compared(plain, raced, pool)
            pairs.append(Pair(title=title, plain=plain, raced=raced, over=over))
            print(pairs[-1].line(), flush=True)
    return pairs


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    given = dict(each.partition("=")[::2] for each in arguments)
    if wrong := [each for each in arguments if "=" not in each]:
        print(f"{wrong[0]!r} is not key=value; see the top of {__file__}", file=sys.stderr)
        return 2
    options = OPTIONS | given
    count = int(options.pop("count"))
    try:
        pairs = asyncio.run(run(count, [*ALWAYS, *(f"{key}={value}" for key, value in options.items())]))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    agreed = sum(each.agrees for each in pairs)
    same = sum(winner(each.plain) == winner(each.raced) for each in pairs)
    plain_s, raced_s = (
        sum(s.device_s for s in states) for states in zip(*((p.plain, p.raced) for p in pairs), strict=True)
    )
    print(f"{agreed} of {len(pairs)} pairs agree, {same} of them with the same kernel; ", end="")
    print(f"device time {plain_s:.0f} s without a race, {raced_s:.0f} s with one")
    return 0 if agreed == len(pairs) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
