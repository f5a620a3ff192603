"""Counts the problems of a suite, or of a model, for which the playbook has a template.

    python benchmarks/coverage.py suite=kernelbench/level1 [device=cuda]
    python benchmarks/coverage.py model=transformers/GPT2LMHeadModel device=cpu [out=folder]

A suite's problems are not run, so no device is needed. Prints the problems by operation or family, and how
many are unknown. A model is profiled and its problems are extracted as by `ideatree optimize`, whose keys
this command takes. For each problem it prints its share of an iteration's time and what the playbook
recognises it as, and finally the share of all known problems. `out`: folder for the problems.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from evaluators.app.command import build, compose_config
from evaluators.app.suite_config import SuiteConfig, entries_of, open_problem
from evaluators.base.usage_error import UsageError
from search.optimize.__main__ import OptimizeConfig
from search.optimize.extraction.problems import extract, places_of
from search.optimize.extraction.record import ExtractedProblem
from search.optimize.extraction.traced_model import TracedModel, trace_model
from search.optimize.model_config import expand_name, source_of
from search.optimize.profiling.profile import profile_of
from search.optimize.profiling.record import Profile
from search.proposers.playbook.playbook import Playbook


def main(arguments: Sequence[str]) -> int:
    """Prints the table; returns the exit status."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if "model" in given:
        out = given.pop("out", "")
        overrides = expand_name([f"{key}={value}" for key, value in given.items()])
        with tempfile.TemporaryDirectory() as scratch:
            return _of_model(overrides, Path(out or scratch))
    if unknown := given.keys() - {"suite", "device"}:
        raise UsageError(f"unknown key {min(unknown)}; known are suite, device, and those of a model")
    if "suite" not in given:
        raise UsageError("no suite or model is given; give suite=kernelbench/level1 or model=…")
    return _of_suite(given["suite"], given.get("device", "cuda"))


def _of_suite(name: str, device: str) -> int:
    suite = build(compose_config(SuiteConfig, [f"suite={name}"]).suite)
    playbook = Playbook()
    found: dict[str, list[str]] = defaultdict(list)
    entries = entries_of(suite)
    for each in entries:
        workload = playbook.workload(open_problem(each.problem, device=device))
        found[workload.op if workload else ""].append(each.problem.rpartition("/")[2])
    unknown_ones = found.pop("", [])
    for op, names in sorted(found.items()):
        print(f"{op:<14}{len(names):>4}  {', '.join(names)}")
    print(f"{len(entries) - len(unknown_ones)} of {len(entries)} problems are known")
    return 0


def _of_model(overrides: Sequence[str], folder: Path) -> int:
    logging.disable(logging.WARNING)
    config = compose_config(OptimizeConfig, overrides)
    config.problem.libraries = config.problem.libraries or "any"  # as in `ideatree optimize`
    models = source_of(config.model).load(
        device=config.device, dtype=config.dtype, backward=False, seed=config.seed
    )
    profile = profile_of(models, entries=[], warmup=1, iterations=config.iterations, say=lambda line: None)
    traced_models = [*map(trace_model, models)]
    problems = extract(profile, traced_models, folder, most=config.targets, gain=config.least_gain).problems
    playbook = Playbook()
    known = []
    for each in problems:
        problem = open_problem(str(folder / each.file), device=config.device, rules=config.problem)
        workload = playbook.workload(problem)
        known += [each] if workload else []
        print(f"{each.time_ms / profile.total_ms:6.1%}  {workload.op if workload else '-':14}{each.target}")
    times = _times(profile, traced_models)
    of_known, of_all = (_calls_ms(each, times) / profile.total_ms for each in (known, problems))
    print(
        f"{len(known)} of {len(problems)} problems are known: {of_known:.1%} of the time; all: {of_all:.1%}"
    )
    return 0


def _times(profile: Profile, traced_models: Sequence[TracedModel]) -> dict[tuple[int, int], float]:
    """The time of each call of an iteration, in ms."""
    singles = [places_of(each, traced_models) for each in profile.targets if not each.is_chain]
    return {call: place.time_ms for several in singles for place, _ in several for call in place.members}


def _calls_ms(problems: Iterable[ExtractedProblem], times: Mapping[tuple[int, int], float]) -> float:
    """The time of all calls that belong to a problem, each once."""
    calls = {call for each in problems for place in each.places for call in place.members}
    return sum(times.get(call, 0.0) for call in calls)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"coverage.py: {error}")
