"""Writes the folder of a comparison without any search."""

from __future__ import annotations

import math
import random
from pathlib import Path

from search.compare.curves import Point, Searched
from search.compare.plan import ComparisonPlan
from search.compare.summary import write

ATTACK = "<script>document.title='taken over'</script>"
ARMS = {"steady": 0.0, "quick": 0.35, f"{ATTACK}<img src=x onerror=alert(1)>": 0.02}
"""Each arm's gain in the logarithm of the speed; the name of the last one is an attack."""
PROBLEMS = ("level1/softmax", "level1/matmul")


def searched(problem: str, arm: str, seed: int, evaluations: int) -> Searched:
    """One search; its level depends on problem and seed."""
    place, rng = random.Random(f"{problem}/{seed}").gauss(0.5, 0.3), random.Random(f"{problem}/{arm}/{seed}")
    end = max(0.0, place + ARMS[arm] + rng.gauss(0, 0.03))
    shares = [step / evaluations for step in range(evaluations + 1)]
    points = tuple(
        Point(evaluations=step, device_s=2.5 * step, speedup=math.exp(end * share))
        for step, share in enumerate(shares)
    )
    statuses = {"correct": evaluations - 3, "compile_error": 2, "crashed": 1}
    final = points[-1].speedup
    return Searched(
        problem=problem,
        arm=arm,
        seed=seed,
        reason="evaluations",
        final=final,
        points=points,
        statuses=statuses,
    )


def compared(folder: Path, *, seeds: int = 12, evaluations: int = 20, ended: int | None = None) -> Path:
    """The folder with all results, or only those of the first `ended` searches; the first search has a
    report."""
    comparison = ComparisonPlan(
        folder=folder,
        arms={name: (f"strategy={name}",) for name in ARMS},
        problems={name: (f"problem={name}",) for name in PROBLEMS},
        seeds=tuple(range(seeds)),
        shared=(),
        unit="evaluations",
        command="python -m search.compare 'problem=level1/softmax' seeds=12",
    )
    found = [
        searched(each.problem, each.arm, each.seed or 0, evaluations) for each in comparison.searches[:ended]
    ]
    folder.mkdir(parents=True, exist_ok=True)
    comparison.results.write_text("".join(f"{each.to_json()}\n" for each in found))
    write(comparison, found)
    comparison.searches[0].folder.mkdir(parents=True)
    (comparison.searches[0].folder / "report.html").write_text("a report")
    return folder
