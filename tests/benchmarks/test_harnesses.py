"""The comparison with KernelBench's evaluation, with a stub of its clone and without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import harnesses
from benchmarks.harnesses import CHEAT, MUTANT, NO, YES, Entrant, Row, entrants, job, main, merged, met, table
from benchmarks.mutants import HONEST, Asked
from benchmarks.mutations import KINDS
from evaluators.base.usage_error import UsageError
from evaluators.records.problem import Kernel, Problem
from evaluators.reference.loading import load_module
from tests.evaluators.catalogue import GROUPS

pytestmark = pytest.mark.slow

EVAL = """
import os, time
from types import SimpleNamespace

import modal


def eval_kernel_against_ref(original_model_src, custom_model_src, **options):
    assert options["num_correct_trials"] == 5 and options["measure_performance"]
    context = {}
    exec(original_model_src, context)
    exec(custom_model_src, context)
    if "dies" in custom_model_src:
        os._exit(3)
    if "sleeps" in custom_model_src:
        time.sleep(600)
    correct = "wrong" not in custom_model_src and "randint" not in original_model_src
    return SimpleNamespace(
        correctness=correct, runtime=1.0, ref_runtime=1.1, metadata={"trials": options["backend"]}
    )
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    package = tmp_path / "clone" / "src" / "kernelbench"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "eval.py").write_text(EVAL)
    return tmp_path / "clone"


@pytest.fixture(scope="module")
def known() -> list[Entrant]:
    return entrants()


def test_every_gpu_kernel_takes_part_once(known: list[Entrant]) -> None:
    names = [each.asked.name for each in known]
    assert len(set(names)) == len(names)
    assert {each.sort for each in known} == {CHEAT, MUTANT, HONEST}
    assert {each.asked.kind for each in known} <= {*GROUPS, *KINDS, "library"}
    assert all(each.asked.problem.device == "cuda" for each in known)
    assert set(harnesses.UNSAFE) < set(names)
    assert any(each.gains for each in known)


def test_their_reference_has_our_sizes(known: list[Entrant]) -> None:
    each = next(each for each in known if each.asked.problem.overrides)
    found = job("any", each.asked.problem, each.asked.kernel)
    module = load_module(found["reference"], {})
    for name, value in each.asked.problem.overrides.items():
        assert getattr(module, name) == value
    assert found["dtype"] == each.asked.problem.dtype


def some(name: str, source: str, words: str = "", *, gains: bool = False) -> Entrant:
    """An entrant with another kernel, and with these words in its reference."""
    asked = Asked(
        name=name,
        kind="timing",
        why="",
        problem=Problem(name="p", source=f"class Model(object): pass\n# {words}", device="cuda"),
        kernel=Kernel(source=f"{source}\nclass ModelNew: pass", language="cpp"),
    )
    return Entrant(sort=CHEAT, asked=asked, gains=gains)


WRITES_TO_OPEN_FILES = """
import os
for each in map(int, os.listdir("/proc/self/fd")):
    try:
        if "results" in os.readlink(f"/proc/self/fd/{each}"):
            os.write(each, b"[" * 100_000)
    except OSError:
        pass
"""


def test_their_half(clone: Path) -> None:
    known = [
        some("right", "# right"),
        some("wrong", "# wrong"),
        some("slow", "# right", gains=True),
        some("dead", "# dies"),
        some("late", "# sleeps"),
        some("vandal", f"# wrong{WRITES_TO_OPEN_FILES}"),
        some("integers", "# right", "randint"),
    ]
    given = harnesses.options_of([f"kernelbench={clone}", "their_timeout_s=12", "at_a_time=2"])
    found = harnesses.run_theirs(known, given)
    verdicts = {name: verdict for name, (verdict, _) in found.items()}
    integers = verdicts.pop("integers")
    assert (integers, verdicts.pop("right")) == ("", YES)
    assert verdicts == dict.fromkeys(["wrong", "slow", "dead", "late", "vandal"], NO)
    assert found["dead"][1] == "it died"
    assert found["late"][1] == "no result after 12 s"
    assert found["integers"][1].startswith("cannot judge the problem")


def test_the_limit_stops_their_half(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = harnesses.options_of([f"kernelbench={clone}", "limit_s=1"])
    assert not harnesses.run_theirs([some("late", "# sleeps")], given)
    assert "stopped after 1 s" in capsys.readouterr().err


def row(sort: str, kind: str, ours: str, theirs: str) -> Row:
    return Row(name=f"{sort} {kind} {ours} {theirs}", sort=sort, kind=kind, ours=ours, theirs=theirs)


def test_the_table_counts_by_kind_and_harness() -> None:
    rows = [
        row(CHEAT, "weak_oracle", NO, YES),
        row(CHEAT, "weak_oracle", NO, ""),
        row(MUTANT, "tail", NO, NO),
        row(HONEST, "library", YES, YES),
        row(HONEST, "honest", NO, YES),
    ]
    lines = table(rows)
    assert "| cheat: weak oracle | 2 | 1 of 1 | 0 of 2 |" in lines
    assert "| **honest, all** | 2 | 2 of 2 | 1 of 2 |" in lines
    assert sum("by ours" in line for line in lines[2:]) == 1
    assert not met(rows)
    assert met(rows[:-1])
    assert not met([*rows[:-1], row(CHEAT, "timing", YES, NO)])
    assert not met([*rows[:-1], row(MUTANT, "edge", YES, NO)])


def test_parts_and_halves_are_merged(tmp_path: Path) -> None:
    files = []
    for number, one in enumerate([row(MUTANT, "tail", NO, ""), row(MUTANT, "edge", YES, NO)]):
        files.append(str(tmp_path / f"{number}.json"))
        Path(files[-1]).write_text(json.dumps([vars(one)]))
    half = tmp_path / "half.json"
    half.write_text(json.dumps([{**json.loads(Path(files[0]).read_text())[0], "ours": "", "theirs": YES}]))
    found = merged([*files, str(half)])
    assert [(each.ours, each.theirs) for each in found] == [(NO, YES), (YES, NO)]
    assert main([f"merge={','.join(files)}", f"out={tmp_path / 'all.json'}"]) == 1
    assert len(json.loads((tmp_path / "all.json").read_text())) == 2


@pytest.mark.parametrize(
    "call", ["speed=1", "part=0/3", "only=nobody", "at_a_time=0", "kernelbench=/nowhere", "merge=/nowhere"]
)
def test_a_wrong_call_is_refused(call: str) -> None:
    with pytest.raises(UsageError):
        main([call])
