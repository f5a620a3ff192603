"""Checks comparisons of strategies where the truth is known: on the synthetic landscape.

    python benchmarks/landscape.py same=100 seeds=20        how often equal strategies are found to differ
    python benchmarks/landscape.py strategies=idea_branching,best_of_n seeds=200
    python benchmarks/landscape.py sensitivity=true seeds=60      the ranking by noise and rate of failures

`same`: the number of comparisons of a strategy with itself, with different random draws on the same
landscapes. The second form is `ideatree compare` plus the time that it took. The third one prints a table of
mean speedups for each noise of implementations and each rate of failures, and writes it as JSON to
`out=<file>`; `docs/pictures/comparing.py` draws the picture in `docs/results/strategies.md` from it.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, replace
from datetime import date
from functools import cache
from pathlib import Path

from search.compare.curves import Searched
from search.compare.searching import search_in_memory
from search.compare.statistics import differences, means
from search.run.searches import PlannedSearch, SearchRunner

EVALUATIONS = 100
NOISES, FAILURES = (0.0, 0.1, 0.3), (0.0, 0.2, 0.5)
Order = tuple[str, tuple[str, ...], int, int]


def one(order: Order) -> Searched:
    """A search by a strategy on one seed's landscape with another seed's random draws."""
    strategy, overrides, seed, chance = order
    planned = PlannedSearch(
        problem="landscape",
        arm=strategy,
        seed=seed,
        overrides=(f"strategy={strategy}", *overrides),
        folder=Path(tempfile.gettempdir()) / "no folder",
    )
    return search_in_memory(runner().config(planned), planned, chance=chance)


@cache
def runner() -> SearchRunner:
    """Composes the configs of such searches once per process."""
    call = ("problem=landscape", "proposer=landscape", "library.use=false", "branch=2", "rounds=100000")
    return SearchRunner(None, "cpu", [*call, f"budget.evaluations={EVALUATIONS}"])


def in_parallel(orders: Sequence[Order]) -> list[Searched]:
    """The searches' results in order, with one process per core."""
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as processes:
        return list(processes.map(one, orders, chunksize=8))


def same(strategy: str, comparisons: int, seeds: int) -> str:
    """How many comparisons of a strategy with itself find a difference."""
    real = 0
    for number in range(comparisons):
        landscapes = range(number * seeds, (number + 1) * seeds)
        found = in_parallel([(strategy, (), seed, seed) for seed in landscapes])
        again = in_parallel([(strategy, (), seed, -1 - seed) for seed in landscapes])
        renamed = [replace(each, arm="again") for each in again]
        real += differences([*found, *renamed])[0].is_real
    return f"{strategy} and itself: {real} of {comparisons} comparisons of {seeds} seeds find a difference"


def compared(strategies: Sequence[str], seeds: int, overrides: tuple[str, ...] = ()) -> list[Searched]:
    """All strategies on the same landscapes."""
    return in_parallel([(name, overrides, seed, seed) for seed in range(seeds) for name in strategies])


def sensitivity(strategies: Sequence[str], seeds: int, out: Path | None) -> None:
    """Prints the mean speedups, a line per noise and rate of failures, and writes all of them to the file."""
    print(f"{'noise':>6}{'failures':>10}  " + "".join(f"{name:>22}" for name in strategies))
    rows = []
    for noise, failures in itertools.product(NOISES, FAILURES):
        changes = (f"proposer.noise={noise}", f"proposer.failures={failures}")
        found = means(compared(strategies, seeds, changes))
        line = "".join(f"{found[name]!s:>22}" for name in strategies)
        print(f"{noise:>6}{failures:>10}  {line}", flush=True)
        means_of = {name: [round(each, 4) for each in astuple(found[name])] for name in strategies}
        rows.append({"noise": noise, "failures": failures, "means": means_of})
    if out is not None:
        body = {"date": str(date.today()), "seeds": seeds, "evaluations": EVALUATIONS, "rows": rows}
        out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def optimum(seeds: int) -> float:
    """The geometric mean of the landscapes' best speedups."""
    from evaluators.app.command import build, compose_config
    from search.run.config import RunConfig

    logs = []
    for seed in range(seeds):
        call = ["problem=landscape", "proposer=landscape", f"seed={seed}"]
        proposer = build(compose_config(RunConfig, call).proposer)
        logs.append(math.log(max(1.0, proposer.landscape.optimum)))
    return math.exp(statistics.mean(logs))


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark; returns its exit status."""
    given = dict(each.partition("=")[::2] for each in arguments)
    if unknown := set(given) - {"same", "strategies", "seeds", "sensitivity", "out"}:
        print(f"landscape.py: unknown key {sorted(unknown)[0]}", file=sys.stderr)
        return 2
    strategies = given.get("strategies", "idea_branching").split(",")
    seeds, start = int(given.get("seeds", 20)), time.monotonic()
    if "same" in given:
        print(same(strategies[0], int(given["same"]), seeds))
    elif "sensitivity" in given:
        sensitivity(strategies, seeds, Path(given["out"]) if "out" in given else None)
    else:
        found = compared(strategies, seeds)
        for arm, mean in sorted(means(found).items(), key=lambda each: -each[1].value):
            print(f"{arm:<24}{mean}")
        for each in differences(found):
            print(each.sentence)
        print(f"the optimum: {optimum(seeds):.3g}")
    print(f"{time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
