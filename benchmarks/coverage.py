"""Which problems of a suite the playbook has a template for.

    python benchmarks/coverage.py suite=kernelbench/level1 [device=cuda]

Nothing is run on a device, so that none has to be there. Prints the problems by the operation or family that
they are, and how many are not known.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from evaluators.cli import build, compose_config
from evaluators.config_errors import UsageError
from evaluators.suite_config import SuiteConfig, entries_of, open_problem
from search.proposers.playbook.playbook import Playbook


def main(arguments: Sequence[str]) -> int:
    """Prints it; returns the exit status."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if unknown := given.keys() - {"suite", "device"}:
        raise UsageError(f"unknown key {min(unknown)}; there are suite, device")
    if "suite" not in given:
        raise UsageError("name a suite: suite=kernelbench/level1")
    suite = build(compose_config(SuiteConfig, [f"suite={given['suite']}"]).suite)
    playbook = Playbook()
    found: dict[str, list[str]] = defaultdict(list)
    entries = entries_of(suite, [])
    for each in entries:
        problem = open_problem(each.problem, device=given.get("device", "cuda"))
        workload = playbook.workload(problem)
        found[workload.op if workload else ""].append(each.problem.rpartition("/")[2])
    unknown_ones = found.pop("", [])
    for op, names in sorted(found.items()):
        print(f"{op:<14}{len(names):>4}  {', '.join(names)}")
    print(f"{len(entries) - len(unknown_ones)} of {len(entries)} problems are known")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"coverage.py: {error}")
