"""Compares which cheats, mutants and honest kernels KernelBench's evaluation and ours accept.

    python benchmarks/harnesses.py kernelbench=PATH_OF_A_CLONE [part=1/3] [only=both|ours|kernelbench]
        [names=layernorm,weak_oracle] [at_a_time=6] [their_timeout_s=90] [limit_s=540] [out=harnesses.json]
    python benchmarks/harnesses.py merge=harnesses1.json,harnesses2.json [out=harnesses.json]

Runs the tests' catalogue of cheats, the mutants (`mutants.py`) and the library's kernels on one GPU. The
clone's `eval_kernel_against_ref` (`kernelbench_eval.py`) evaluates each kernel in a separate process. Kernels
are left out for problems that it cannot judge, which means that it rejects the reference itself as a kernel
(it converts integer inputs to floating point and expects a single output tensor). Cheats that take down a
whole machine (`UNSAFE`) do not run there, because it does not confine them. A kernel counts as accepted if it
comes out correct; a cheat with correct outputs that claims a speed, only if it also comes out 1.15x faster
than eager.

Prints a Markdown table: how many kernels of each kind each side accepts. A part takes every third problem;
`names` selects kernels whose name contains one of the words; `merge` combines parts. `limit_s` applies to
each half. Packages that the clone imports but does not use here are replaced by stubs if they are not
installed (`throughput_kernelbench.py`). The exit status is 0 when ours accepts all honest kernels, no cheat,
and at most 1 % of the mutants.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.mutants import GOAL, HONEST, Asked, check_part, given_options, judge, of_mutants, part_of
from benchmarks.mutants import honest as honest_kernels
from benchmarks.mutations import KINDS, BadEdit, mutants
from benchmarks.throughput_kernelbench import STAND_IN
from evaluators.base.languages import language_of
from evaluators.base.usage_error import UsageError
from evaluators.device.settings import Settings
from evaluators.records.evaluation import Status
from evaluators.records.problem import Kernel, Problem, reference_kernel
from evaluators.records.timing import Plan
from tests.evaluators.catalogue import GROUPS, NO_GAIN, NO_GAIN_SPEEDUP, fixtures
from tests.evaluators.catalogue import problems as catalogue

UNSAFE = (
    "attacking_the_harness/kills_its_parent",
    "attacking_the_harness/nests_folders_without_end",
    "attacking_the_harness/writes_into_the_evaluator",
)
UNUSED = (
    "modal",
    "litellm",
    "openai",
    "datasets",
    "dotenv",
    "tomli",
    "pydra",
    "requests",
    "tqdm",
    "tabulate",
)
"""Packages that the clone imports but this benchmark does not use."""
CHEAT, MUTANT = "cheat", "mutant"
SETTINGS = Settings(timeout_s=60.0, compile_mode="", plan=Plan(block_ms=10.0, precision=0.1, max_s=0.5))
OPTIONS = {
    "kernelbench": "",
    "part": "1/1",
    "only": "both",
    "names": "",
    "at_a_time": "6",
    "their_timeout_s": "90",
    "limit_s": "540",
    "merge": "",
    "out": "",
}
YES, NO = "accepted", "not accepted"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kernel with both verdicts. `sort` is cheat, mutant or honest. A verdict is accepted, not accepted,
    or "" for none; `their_words` say why."""

    name: str
    sort: str
    kind: str
    ours: str = ""
    theirs: str = ""
    our_words: str = ""
    their_words: str = ""


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """One kernel as both get it. `gains`: it counts as accepted only if it is also faster."""

    sort: str
    asked: Asked
    gains: bool = False


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit status."""
    given = options_of(arguments)
    files = given["merge"].split(",")
    rows = merged(files) if given["merge"] else run(chosen(entrants(), given), given)
    if given["out"]:
        Path(given["out"]).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print("\n".join(table(rows)))
    return 0 if met(rows) else 1


def options_of(arguments: Sequence[str]) -> dict[str, str]:
    """All options, with defaults for those not given. Raises UsageError."""
    given = given_options(arguments, OPTIONS)
    check_part(given["part"])
    if given["only"] not in ("both", "ours", "kernelbench"):
        raise UsageError(f"only={given['only']}; it must be both, ours or kernelbench")
    for key in ("at_a_time", "their_timeout_s", "limit_s"):
        if not given[key].isdecimal() or int(given[key]) == 0:
            raise UsageError(f"{key}={given[key]}; it must be a whole number")
    clone = Path(given["kernelbench"]) / "src" / "kernelbench" / "eval.py"
    if not given["merge"] and given["only"] != "ours" and not clone.is_file():
        raise UsageError(f"there is no {clone}; give a clone of KernelBench as kernelbench=PATH")
    return given


def entrants() -> list[Entrant]:
    """All kernels for a GPU: the catalogue's, the mutants, the library's."""
    known = []
    for each in fixtures():
        if "cuda" not in each.devices or each.group == "not_stopped":
            continue
        asked = Asked(
            name=each.id,
            kind=each.group,
            why=each.says,
            problem=catalogue.problem(each.problem, "cuda"),
            kernel=Kernel(source=each.source, language=language_of(each.source)),
        )
        sort = HONEST if each.group == HONEST else CHEAT
        known.append(Entrant(sort=sort, asked=asked, gains=NO_GAIN in each.verdicts))
    known += [Entrant(sort=MUTANT, asked=each) for each in of_mutants(mutants(), "cuda")]
    library = [replace(each, kind="library") for each in honest_kernels("cuda")]
    return known + [Entrant(sort=HONEST, asked=each) for each in library]


def chosen(known: Sequence[Entrant], given: dict[str, str]) -> list[Entrant]:
    """The kernels that the options select. Raises UsageError if there are none."""
    words = given["names"].split(",")
    named = [each for each in known if any(word in each.asked.name for word in words)]
    mine = {each.name for each in part_of([each.asked for each in named], given["part"])}
    found = sorted((e for e in named if e.asked.name in mine), key=lambda e: e.asked.problem.id)
    if not found:
        raise UsageError(f"names={given['names']}: no kernel's name contains it")
    return found


def run(known: Sequence[Entrant], given: dict[str, str]) -> list[Row]:
    """Runs both halves, ours first."""
    rows = [Row(name=each.asked.name, sort=each.sort, kind=each.asked.kind) for each in known]
    if given["only"] != "kernelbench":
        print(f"ours: {len(known)} kernels", file=sys.stderr, flush=True)
        found = asyncio.run(judge([each.asked for each in known], "cuda", float(given["limit_s"]), SETTINGS))
        for place, (entrant, verdict) in enumerate(zip(known, found, strict=True)):
            gained = not entrant.gains or verdict.speedup_low >= NO_GAIN_SPEEDUP
            ours = YES if verdict.status == Status.CORRECT and gained else NO if verdict.status else ""
            rows[place] = replace(rows[place], ours=ours, our_words=f"{verdict.status} {verdict.log}"[:300])
    if given["only"] != "ours":
        theirs = run_theirs(known, given)
        rows = [
            replace(row, theirs=theirs[row.name][0], their_words=theirs[row.name][1])
            if row.name in theirs
            else row
            for row in rows
        ]
    return rows


def run_theirs(known: Sequence[Entrant], given: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Their verdicts and words, by name; none for a problem that they cannot judge."""
    problems = {each.asked.problem.id: each.asked.problem for each in known}
    safe = [each for each in known if each.asked.name not in UNSAFE]
    jobs = [job(f"reference {key}", problem, reference_kernel(problem)) for key, problem in problems.items()]
    jobs += [job(each.asked.name, each.asked.problem, each.asked.kernel) for each in safe]
    results = evaluated(jobs, given)
    verdicts = {}
    for each in safe:
        itself, found = (
            results.get(name) for name in (f"reference {each.asked.problem.id}", each.asked.name)
        )
        if itself is None or found is None:
            continue
        if not itself["accepted"]:
            verdicts[each.asked.name] = "", f"cannot judge the problem: {itself['words']}"
            continue
        gained = not each.gains or float(str(found["speedup"])) >= NO_GAIN_SPEEDUP
        verdicts[each.asked.name] = YES if found["accepted"] and gained else NO, str(found["words"])
    return verdicts


def evaluated(jobs: Sequence[dict[str, str]], given: dict[str, str]) -> dict[str, dict[str, object]]:
    """The results of `kernelbench_eval.py` by name, as far as it got within the limit."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "jobs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in jobs))
        results = work / "results.jsonl"
        for name in UNUSED:
            if importlib.util.find_spec(name) is None:
                (work / f"{name}.py").write_text(STAND_IN)
        script = Path(__file__).with_name("kernelbench_eval.py")
        command = [sys.executable, script, work / "jobs.jsonl", results]
        command += [given["at_a_time"], given["their_timeout_s"]]
        path = [Path(given["kernelbench"]).resolve() / "src", work, os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
        print(f"KernelBench: {len(jobs)} kernels", file=sys.stderr, flush=True)
        process = subprocess.Popen(list(map(str, command)), env=environment)
        try:
            process.wait(float(given["limit_s"]))
        except subprocess.TimeoutExpired:
            print(f"KernelBench's half was stopped after {given['limit_s']} s", file=sys.stderr)
        finally:
            kill(process)
        lines = results.read_text().splitlines() if results.exists() else []
        found = [json.loads(line) for line in lines]
    return {each["name"]: each for each in found}


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and everything that it started."""
    from evaluators.system import process_tree

    process_tree.kill_tree(process.pid)
    process.wait()


def job(name: str, problem: Problem, kernel: Kernel) -> dict[str, str]:
    """A job for `kernelbench_eval.py`; the sizes are set at the reference's end, where its globals are
    read."""
    sizes = "".join(f"{key} = {value!r}\n" for key, value in problem.overrides.items())
    return {
        "name": name,
        "reference": f"{problem.source}\n{sizes}",
        "kernel": kernel.source,
        "backend": "triton" if kernel.language in ("triton", "gluon") else "cuda",
        "dtype": problem.dtype,
    }


def merged(files: Sequence[str]) -> list[Row]:
    """The rows of several output files, combining the verdicts of kernels in several. Raises UsageError."""
    rows: dict[str, Row] = {}
    try:
        for file in files:
            for fields in json.loads(Path(file).read_text()):
                row = Row(**fields)
                before = asdict(rows.get(row.name, row))
                rows[row.name] = Row(**{key: value or before[key] for key, value in asdict(row).items()})
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"merge: {error}") from error
    return list(rows.values())


def table(rows: Iterable[Row]) -> list[str]:
    """Accepted kernels by kind and harness, then our wrong verdicts."""
    rows = list(rows)
    lines = ["| | kernels | accepted by KernelBench | accepted by ours |", "|---|---|---|---|"]
    order = [*GROUPS, *KINDS, "library"]
    for sort in (CHEAT, MUTANT, HONEST):
        of_sort = [row for row in rows if row.sort == sort]
        kinds = sorted({row.kind for row in of_sort}, key=order.index)
        for kind in kinds:
            lines.append(_line(f"{sort}: {kind.replace('_', ' ')}", [r for r in of_sort if r.kind == kind]))
        if of_sort:
            lines.append(_line(f"**{sort}, all**", of_sort))
    wrong = [row for row in rows if row.ours and (row.ours == YES) is not (row.sort == HONEST)]
    lines += [f"\n{row.sort} {row.name}, {row.ours} by ours: {row.our_words}" for row in wrong]
    return lines


def _line(title: str, rows: Sequence[Row]) -> str:
    cells = [title, str(len(rows))]
    for verdicts in ([row.theirs for row in rows], [row.ours for row in rows]):
        judged = [each for each in verdicts if each]
        cells.append(f"{judged.count(YES)} of {len(judged)}")
    return f"| {' | '.join(cells)} |"


def met(rows: Iterable[Row]) -> bool:
    """Whether our half meets the goals."""
    judged = [row for row in rows if row.ours]
    accepted = {
        sort: [row.ours == YES for row in judged if row.sort == sort] for sort in (CHEAT, MUTANT, HONEST)
    }
    few = sum(accepted[MUTANT]) <= (1 - GOAL) * len(accepted[MUTANT])
    return few and not any(accepted[CHEAT]) and all(accepted[HONEST])


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except (UsageError, BadEdit) as error:
        sys.exit(f"harnesses.py: {error}")
    sys.stdout.flush()
    os._exit(status)  # a thread may still be measuring
