"""Compares the campaign's scheduler with equal shares for all problems, on synthetic landscapes with known
ceilings:

    python benchmarks/campaign.py problems=30 each=40 tries=20

Each try has `problems` problems with different ceilings and a budget of `each` evaluations per problem. Both
schedulers get the same problems and budget. A problem is solved when its speedup over eager reaches `target`.
Prints how many problems each scheduler solves, the geometric mean of the speedups, and the paired differences
with their bootstrap 95 % intervals.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

import numpy
from scipy import stats

from search.campaign.running import Campaign, CampaignRun
from search.campaign.schedulers import Equal, ExpectedGain, Scheduler
from search.campaign.slices import SearchProgress, StopRules
from search.proposers.landscape import START, Landscape
from search.run.searches import PlannedSearch

SCHEDULERS = ("equal", "gain")
SHAPE = {"needy": 0.2, "clashing": 0.1}
SLICE = 10


def planned(folder: Path, number: int, chance: random.Random) -> PlannedSearch:
    """A problem with a random number of moves of random worth, and so a random ceiling."""
    moves, mean = chance.choice([2, 3, 4, 6, 8, 12]), chance.uniform(0.05, 0.25)
    seed = chance.randrange(10**6)
    landscape = Landscape(seed, moves=moves, mean=mean, spread=0.15, **SHAPE)
    keys = {"moves": moves, "mean": mean, "spread": 0.15, "seed": seed, **SHAPE}
    return PlannedSearch(
        problem=f"landscape/{number}",
        arm="search",
        weight=1.0,
        overrides=(
            "problem=landscape",
            "proposer=landscape",
            "library.use=false",
            "branch=2",
            "rounds=100000",
            *(f"proposer.{key}={value}" for key, value in keys.items()),
            f"seed={number}",
        ),
        folder=folder / str(number),
        ceiling=landscape.optimum,
    )


def one(order: tuple[str, int, int, int, float]) -> list[float]:
    """The speedups that a scheduler reaches in one try."""
    name, seed, problems, each, target = order
    scheduler: Scheduler = Equal() if name == "equal" else ExpectedGain(target=target)
    with tempfile.TemporaryDirectory() as folder:
        chance = random.Random(seed)
        campaign = Campaign(
            folder=Path(folder),
            planned=[planned(Path(folder), number, chance) for number in range(problems)],
            scheduler=scheduler,
            rules=StopRules(patience=10**6, roofline=10.0, failures=10**6),
            slice=SLICE,
            at_once=1,
            limits={"evaluations": problems * each},
        )
        run = CampaignRun(campaign, None, "cpu", lambda run: None)
        asyncio.run(run.run())
        return [reached(search) for search in run.searches]


def reached(search: SearchProgress) -> float:
    """A search's speedup; without a correct kernel, half of where all searches start."""
    return max(START / 2, search.final or search.speedup)


def difference(values: list[float]) -> str:
    """Their mean with its interval."""
    found = stats.bootstrap((numpy.asarray(values),), numpy.mean, rng=numpy.random.default_rng(0))
    low, high = found.confidence_interval
    return f"{statistics.fmean(values):.3g} [{low:.3g}, {high:.3g}]"


def main() -> None:
    """Prints what both schedulers reach."""
    given = dict(each.split("=") for each in sys.argv[1:])
    problems, each, tries = (
        int(given.get(key, default)) for key, default in (("problems", "30"), ("each", "40"), ("tries", "20"))
    )
    target = float(given.get("target", "1.5"))
    orders = [(name, seed, problems, each, target) for seed in range(tries) for name in SCHEDULERS]
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as processes:
        found = dict(zip(orders, processes.map(one, orders), strict=True))
    solved = {order: sum(value > target for value in values) for order, values in found.items()}
    means = {order: statistics.fmean(map(math.log, values)) for order, values in found.items()}
    for name in SCHEDULERS:
        of = [order for order in orders if order[0] == name]
        mean = math.exp(statistics.fmean(means[order] for order in of))
        count = statistics.fmean(solved[order] for order in of)
        print(f"{name:<8}solved {count:.2f} of {problems}, mean {mean:.3f}x")
    pairs = [(orders[n], orders[n + 1]) for n in range(0, len(orders), 2)]
    print(
        f"additional problems solved: {difference([float(solved[b] - solved[a]) for a, b in pairs])} per try"
    )
    print(f"log of the mean speedup: {difference([means[b] - means[a] for a, b in pairs])} more")


if __name__ == "__main__":
    main()
