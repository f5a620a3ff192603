"""The library in its places: what is added is found again, whole, whatever happens meanwhile."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Problem
from kernel_library.catalogue import cards
from kernel_library.catalogue.entry import Against, Entry, HitKind, RepeatedMeasurement
from kernel_library.catalogue.library import FolderLibrary
from kernel_library.catalogue.retrieval import bests
from tests.kernel_library.entries import CPU, entry, reference, shipped

ROOT = Path(__file__).parents[3]
PROBLEM = reference("torch.softmax(a[0], -1)", "torch.randn(4, 6)", device="cpu")
FILES = {"kernel.py", "reference.py", "card.yaml"}


def library(root: str | Path) -> FolderLibrary:
    return FolderLibrary(root, seeds=None, today=lambda: date(2026, 11, 1))


def named(n: int, speedup: float = 2.0) -> Entry:
    return entry(PROBLEM, f"class ModelNew: kernel = {n}\n", speedup)


@pytest.fixture(params=["folder", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "a [b]*" / "library") if request.param == "folder" else f"memory://{tmp_path}"


def test_what_is_added_is_found_again(root: str) -> None:
    assert library(root).lookup(PROBLEM, 9) == []
    slow, fast = named(1, 1.5), named(2, 3.0)
    assert library(root).add(slow)
    assert library(root).add(fast)
    hits = library(root).lookup(PROBLEM, 9, CPU)
    assert [hit.entry.kernel for hit in hits] == [fast.kernel, slow.kernel]
    assert [hit.evaluation for hit in hits] == [e.measurements[0].evaluation for e in (fast, slow)]
    assert [hit.entry.id for hit in library(root).lookup(PROBLEM, 1)] == [fast.id]


def test_an_entry_is_added_once(root: str) -> None:
    assert library(root).add(named(1))
    assert not library(root).add(named(1, 5.0))
    (kept,) = library(root).entries()
    assert kept.best.evaluation.speedup == 2.0


def test_kernels_not_significantly_faster_are_refused_by_default(tmp_path: Path) -> None:
    """The lower end of its interval is 0.995."""
    unsure = named(1, 1.005)
    assert not library(tmp_path).add(unsure)
    assert "1.00 [0.99, 1.02] is not significantly above 1.00" in str(library(tmp_path).refusal(unsure))
    assert library(tmp_path).entries() == []
    assert FolderLibrary(tmp_path, seeds=None, min_speedup=0).add(unsure)
    assert library(tmp_path).refusal(named(2, 1.05)) is None
    with pytest.raises(ValueError, match="min_speedup is -1"):
        FolderLibrary(tmp_path, min_speedup=-1)


def test_the_best_is_the_one_that_won_in_one_session(root: str) -> None:
    first, lucky = named(1, 2.0), named(2, 3.0)
    assert library(root).best(PROBLEM, CPU) is None
    library(root).add(first)

    def against(speedup: float) -> Entry:
        beside = Against(entry=first.id, speedup=speedup, speedup_low=speedup - 0.1, speedup_high=9.0)
        return replace(lucky, measurements=(replace(lucky.measurements[0], against=beside),))

    library(root).add(against(0.9))
    best = library(root).best(PROBLEM, CPU)
    assert best is not None and best.id == first.id, "though its interval is the lower one"
    assert [hit.entry.id for hit in library(root).lookup(PROBLEM, 2, CPU)] == [first.id, lucky.id]
    assert library(root).best(replace(PROBLEM, dtype="float64"), CPU) is None
    assert set(bests([first, against(1.2)]).values()) == {lucky.id}
    assert set(bests([first, against(1.05)]).values()) == {first.id}, "not surely faster"
    assert set(bests([against(0.9)]).values()) == {lucky.id}, "the other is gone"


def test_what_its_reference_says_is_filled_in(tmp_path: Path) -> None:
    library(tmp_path).add(named(1))
    (found,) = library(tmp_path).entries()
    (measurement,) = found.measurements
    assert (found.op, found.parts, found.dtypes, found.shapes) == (
        "softmax",
        ("softmax",),
        ("float32",),
        ("4x6",),
    )
    assert (found.function, found.architectures) == ("ModelNew", ())
    assert (measurement.inputs, measurement.date) == (("4x6",), "2026-11-01")
    assert measurement.command == f"python -m kernel_library.verify entry={found.id}"
    assert {path.name for path in (tmp_path / found.id).iterdir()} == FILES
    plain = entry(shipped("level1/softmax"), "def softmax(x): ...\nclass ModelNew: ...", tags=("mine",))
    library(tmp_path).add(replace(plain, op="softmax", shapes=("*x*",)))
    found = next(each for each in library(tmp_path).entries() if each.id == plain.id)
    assert (found.function, found.architectures, found.tags) == ("softmax", ("9.0",), ("mine",))
    assert found.shapes == ("*x*",)


def test_shipped_entries_are_listed_with_the_roots(tmp_path: Path) -> None:
    own, seeds = tmp_path / "own", tmp_path / "seeds"
    folder = seeds / "softmax" / "online"
    folder.mkdir(parents=True)
    seed = replace(entry(shipped("level1/softmax", device="cpu")), op="softmax", name="softmax/online")
    (folder / "card.yaml").write_text(cards.dump(seed))
    (folder / "kernel.py").write_text(seed.kernel.source)
    (folder / "__init__.py").write_text("")
    both = FolderLibrary(own, seeds=seeds)
    both.add(named(1))
    assert both.entries()[0] == seed
    assert [hit.kind for hit in both.lookup(PROBLEM, 9)] == [HitKind.PROBLEM, HitKind.OP]
    failed = Evaluation(status=Status.CRASHED, environment=CPU)
    check = RepeatedMeasurement(
        problem_id=seed.measurements[0].problem.id, evaluation=failed, date="2026-11-02"
    )
    both.save_check(seed, check)
    assert FolderLibrary(own, seeds=seeds).entries()[0].checks == (check,)
    later = replace(check, date="2026-11-03")
    there = replace(check, evaluation=replace(failed, environment={"device": "another"}))
    both.save_check(seed, later)
    both.save_check(seed, there)
    assert sorted(both.entries()[0].checks, key=lambda each: each.device) == [later, there]
    assert (folder / "card.yaml").read_text() == cards.dump(seed)
    assert {each.id for each in both.entries()} == {seed.id, named(1).id}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("card.yaml", b"op: ["),
        ("card.yaml", b"op: softmax\n"),
        ("card.yaml", b"- \xff"),
        ("kernel.py", b"class ModelNew: changed = True\n"),
        ("kernel.py", b"\xff\xfe"),
        ("kernel.py", None),
        ("reference.py", b"another = 1\n"),
        ("reference.py", None),
    ],
)
def test_a_damaged_entry_is_left_out(
    name: str, content: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library(tmp_path).add(named(1))
    library(tmp_path).add(named(2))
    damaged = tmp_path / named(1).id / name
    damaged.unlink() if content is None else damaged.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert [hit.entry.id for hit in library(tmp_path).lookup(PROBLEM, 9)] == [named(2).id]
    assert f"{named(1).id} cannot be read" in caplog.text


def test_a_root_that_nothing_opens() -> None:
    with pytest.raises(ValueError, match=r"^library.root=nowhere://x cannot be opened"):
        library("nowhere://x")


def test_a_root_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        library(tmp_path / "file").add(named(1))


CHILD = """
import os, signal, sys
from pathlib import Path
from fsspec.implementations.local import LocalFileSystem
from kernel_library.catalogue import library as module
from kernel_library.catalogue.traits import Traits
from tests.kernel_library.catalogue.test_library import library, named

module.traits_of = lambda problem: Traits()  # torch takes long to import


def die_at(name, at):
    "The process is killed in the n-th call of a method, half of the data written."
    real, calls = getattr(LocalFileSystem, name), []
    def instead(self, path, *others, **more):
        calls.append(path)
        if len(calls) == at:
            if name == "pipe_file":
                Path(path).write_bytes(others[0][: len(others[0]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, path, *others, **more)
    setattr(LocalFileSystem, name, instead)


root, first, last, *death = sys.argv[1:]
if death:
    die_at(death[0], int(death[1]))
for n in range(int(first), int(last)):
    library(root).add(named(n))
    print(n, flush=True)
"""


def adding(root: Path, first: int, last: int, *death: str) -> subprocess.Popen[str]:
    """A process that adds some entries, and says so of each."""
    call = [sys.executable, "-c", CHILD, str(root), str(first), str(last), *death]
    return subprocess.Popen(call, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_kill_in_the_middle_of_an_add_leaves_nothing_by_half(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deaths = [(name, str(at)) for name in ("pipe_file", "mv") for at in (4, 5, 6)]
    roots = [tmp_path / name / at for name, at in deaths]
    children = [adding(root, 0, 9, *death) for root, death in zip(roots, deaths, strict=True)]
    for root, child in zip(roots, children, strict=True):
        said, _ = child.communicate(timeout=60)
        assert (child.returncode, said) == (-signal.SIGKILL, "0\n")
        assert [each.id for each in library(root).entries()] == [named(0).id]
        assert library(root).add(named(1))
        found = library(root).entries()
        assert {each.kernel for each in found} == {named(0).kernel, named(1).kernel}
    assert caplog.text == ""


@pytest.mark.slow
def test_several_at_once_and_one_of_them_killed(tmp_path: Path) -> None:
    children = [adding(tmp_path, first, first + 40) for first in (0, 20, 20, 60)]
    killed = children.pop()
    assert killed.stdout is not None
    said = [killed.stdout.readline()]
    killed.kill()
    said += [*killed.stdout]
    killed.communicate()
    for child in children:
        output, _ = child.communicate(timeout=60)
        assert len(output.split()) == 40
    found = {each.kernel for each in library(tmp_path).entries()}
    confirmed = {*range(60), *map(int, said)}
    under_way = max(map(int, said)) + 1
    assert found - {named(under_way).kernel} == {named(n).kernel for n in confirmed}


def test_a_problem_finds_nothing_of_another(tmp_path: Path) -> None:
    library(tmp_path).add(named(1))
    other = Problem(name="file/x", source="class Model: ...", device="cpu")
    assert library(tmp_path).lookup(other, 9) == []
