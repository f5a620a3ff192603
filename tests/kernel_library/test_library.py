"""The folder library: what is added is found again, whole, and by every run."""

import json
import logging
import threading
from pathlib import Path

import pytest

from evaluators.evaluation import Evaluation, Status, Timing
from evaluators.problem import Kernel, Problem
from kernel_library.entry import Entry
from kernel_library.library import FolderLibrary

PROBLEM = Problem(name="level1/softmax", source="class Model: ...")


def entry(source: str, speedup: float = 2.0, problem: Problem = PROBLEM) -> Entry:
    timing = Timing(
        kernel_ms=1.0, eager_ms=speedup, speedup=speedup, speedup_low=speedup, speedup_high=speedup
    )
    return Entry(
        problem=problem.name,
        problem_id=problem.id,
        kernel=Kernel(source=source, language="triton"),
        evaluation=Evaluation(status=Status.CORRECT, timing=timing, environment={"device": "gpu"}),
        idea="read once",
    )


def test_what_is_added_is_found_again(tmp_path: Path) -> None:
    library = FolderLibrary(tmp_path)
    assert library.lookup(PROBLEM, 3) == []
    slow, fast = entry("a", 1.5), entry("b", 3.0)
    assert library.add(slow)
    assert library.add(fast)
    assert FolderLibrary(tmp_path).lookup(PROBLEM, 3) == [fast, slow]
    assert library.lookup(PROBLEM, 1) == [fast]


def test_an_entry_is_added_once(tmp_path: Path) -> None:
    library = FolderLibrary(tmp_path)
    assert library.add(entry("a"))
    assert not library.add(entry("a"))
    assert len(library.lookup(PROBLEM, 9)) == 1


def test_other_problems_are_not_found(tmp_path: Path) -> None:
    library = FolderLibrary(tmp_path)
    library.add(entry("a"))
    other = Problem(name=PROBLEM.name, source=PROBLEM.source, device="cuda")
    assert library.lookup(other, 9) == []


def test_only_correct_kernels_are_entries() -> None:
    with pytest.raises(ValueError, match="incorrect"):
        Entry(
            problem="p",
            problem_id="i",
            kernel=Kernel(source="a", language="cpp"),
            evaluation=Evaluation(status=Status.INCORRECT),
        )


def test_a_damaged_entry_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    library = FolderLibrary(tmp_path)
    library.add(entry("a"))
    library.add(entry("b"))
    damaged = tmp_path / PROBLEM.id / entry("a").id / "card.json"
    card = json.loads(damaged.read_text())
    del card["evaluation"]
    damaged.write_text(json.dumps(card))
    with caplog.at_level(logging.WARNING):
        assert library.lookup(PROBLEM, 9) == [entry("b")]
    assert "cannot be read" in caplog.text


def test_many_at_once_lose_nothing(tmp_path: Path) -> None:
    added: list[bool] = []

    def add_all() -> None:
        library = FolderLibrary(tmp_path)
        added.extend(library.add(entry(str(n), n + 1.0)) for n in range(20))

    threads = [threading.Thread(target=add_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(added) == 20
    assert len(FolderLibrary(tmp_path).lookup(PROBLEM, 99)) == 20
    assert not list((tmp_path / PROBLEM.id).glob(".part-*"))
