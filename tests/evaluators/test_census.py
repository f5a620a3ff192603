"""What looks at a kernel's threads, or at rows of its calls, say of who does its work."""

import ctypes
import mmap
import os
import time
from pathlib import Path

import numpy as np
import pytest

from evaluators import peek, process_tree
from evaluators.census import (
    ENOUGH_LOOKS,
    FAIR_TRIES,
    FEWEST_LOOKS,
    LATE,
    LONGEST_S,
    PATIENCE_S,
    SURE_LOOKS,
    Census,
    Looks,
    hidden,
    is_as_installed,
    row_length,
    sure,
    undecided,
)
from evaluators.library_code import LibraryCode

NO_CODE = LibraryCode(np.empty(0, np.uint64))


@pytest.mark.parametrize(
    ("own", "library", "is_own"), [(9, 1, True), (5, 5, False), (0, 9, False), (0, 0, True)]
)
def test_most_of_the_computing_must_be_the_kernels_own(own: int, library: int, is_own: bool) -> None:
    assert (
        Census(own=own, library=library, names=("libtorch_cpu.so",), asked=0.8).reason() is None
    ) == is_own


@pytest.mark.parametrize(
    ("own", "library", "elapsed_s", "goes_on"),
    [
        (FEWEST_LOOKS - 1, 0, PATIENCE_S / 2, True),
        (FEWEST_LOOKS - 1, 0, PATIENCE_S, False),
        (FEWEST_LOOKS, 0, LONGEST_S / 2, True),
        (FEWEST_LOOKS, 0, LONGEST_S, False),
        (ENOUGH_LOOKS, 0, 0.0, False),
        (27, 13, PATIENCE_S / 2, True),
        (27, 13, PATIENCE_S, False),
        (6, 10, 0.0, False),
        (SURE_LOOKS // 2, SURE_LOOKS // 2, 0.0, False),
    ],
)
def test_a_rejection_takes_more_looks_than_an_acquittal(
    own: int, library: int, elapsed_s: float, goes_on: bool
) -> None:
    seen = Census(own=own, library=library, asked=0.8)
    assert undecided(own + library, FAIR_TRIES, seen, elapsed_s) is goes_on


def test_slow_calls_are_looked_at_often_enough_however_long_that_takes() -> None:
    seen = Census(own=FEWEST_LOOKS - 1, library=0, asked=0.8)
    assert undecided(FEWEST_LOOKS - 1, FAIR_TRIES - 1, seen, 10 * PATIENCE_S)
    assert not undecided(FEWEST_LOOKS - 1, FAIR_TRIES, seen, 10 * PATIENCE_S)


@pytest.mark.parametrize(
    ("call_ms", "output_bytes", "stretch", "length"),
    [
        (0.1, 1000, 1, 100),
        (0.1, 1000, 3, 300),
        (0.0, 1000, 1, 1000),
        (0.0, 1000, 2, 2000),
        (0.01, 2**20, 1, 64),
        (0.01, 2**20, 4, 64),
        (0.01, 2**30, 1, 1),
    ],
)
def test_a_row_is_long_and_its_outputs_fit(
    call_ms: float, output_bytes: int, stretch: int, length: int
) -> None:
    assert row_length(call_ms, output_bytes, stretch) == length


def test_rows_become_longer_while_looks_find_nobody() -> None:
    looks, seen = Looks(0, "/nowhere", NO_CODE), []
    for _ in range(3 * FEWEST_LOOKS):
        looks.delay_s()
        seen.append(looks.stretch)
    assert seen == [1] * 7 + [2] * 8 + [3] * 8 + [4]
    assert looks.sleeps, "the core may be the one that the runner waits for"
    looks._own = 3 * FEWEST_LOOKS // 4
    assert looks.stretch == 1
    assert not looks.sleeps


@pytest.mark.parametrize(("row_ms", "slower"), [(0.05, False), (0.29, False), (0.31, True)])
def test_who_is_slower_in_rows_does_less_when_it_is_timed(row_ms: float, slower: bool) -> None:
    looks = Looks(0, "/nowhere", NO_CODE)
    assert looks.slower_in_rows(0.1) is None
    looks.call_ms = 0.1
    looks.saw_row(9.0, 100, watched=False)
    for _ in range(2):  # and 9 ms once, when the machine was busy
        looks.saw_row(row_ms, 100, watched=False)
    looks.saw_row(0.001, 100, watched=True)
    assert bool(looks.slower_in_rows(0.1)) is slower
    assert 0 <= looks.delay_s() <= row_ms * 100 / 1e3
    assert looks.tries == 1, "a call that ends before the look counts, too"


def test_of_single_calls_the_fastest_is_held_against_rows() -> None:
    looks = Looks(0, "/nowhere", NO_CODE)
    looks.call_ms = 0.3  # as a busy machine makes most of them
    looks.saw_row(0.4, 100, watched=False)
    assert looks.slower_in_rows(0.1) is None
    looks.alone_ms = 0.05
    assert "0.05 ms when it is timed and 0.4 ms in a row" in str(looks.slower_in_rows(0.1))


def test_who_was_hardly_seen_is_not_cleared() -> None:
    assert hidden(FEWEST_LOOKS) is None
    assert "only 7 looks" in str(hidden(FEWEST_LOOKS - 1))


def test_on_a_busy_machine_few_looks_do_not_reject() -> None:
    def seen(own: int, library: int) -> bool:
        return sure(own + library, Census(own=own, library=library, asked=0.8))

    assert not seen(2, 1)
    assert not seen(7, 9)
    assert seen(6, 10)
    assert not seen(75, 24)
    assert seen(75, 25)
    assert not seen(80, 20)


def test_a_look_that_comes_late_clears_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(os.getpid(), "/scratch", NO_CODE)
    looks.span_ms = 1000.0
    place = peek.Region(0, 4096, "/scratch/own.so")
    for name in ("stop_all", "stop_tree", "signal_all"):
        monkeypatch.setattr(process_tree, name, lambda *_: {1})
    monkeypatch.setattr(looks, "_places", lambda pid: [(0, place, [])])
    monkeypatch.setattr(looks, "_is_library", lambda *_: place.path.endswith("library.so"))
    late = time.perf_counter() - 2 * LATE
    looks.look([], due=late)
    assert looks.count == 0
    looks.look([], due=time.perf_counter())
    assert looks.census().own == 1
    place = peek.Region(0, 4096, "/library.so")
    looks.look([], due=late)
    assert looks.census().library == 1


def ours(name: str) -> peek.Region:
    regions = peek.code_regions(os.getpid())
    return next(each for each in regions if name in each.path)


@pytest.mark.skipif(not peek.can_peek(), reason="this machine lets nobody look into a child")
@pytest.mark.parametrize("name", ["/libc", "[vdso]"])
def test_a_neutral_file_has_the_code_that_was_installed(name: str) -> None:
    place = ours(name)
    assert all(is_as_installed(os.getpid(), at, place) for at in (place.start, place.end - 1))


@pytest.mark.skipif(not peek.can_peek(), reason="this machine lets nobody look into a child")
def test_code_in_the_place_of_a_neutral_files_is_found() -> None:
    library = ours("/libc")
    with open(library.path, "rb") as file:
        copy = mmap.mmap(file.fileno(), 8192, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(copy))
    place = peek.Region(start, start + 8192, library.path, 0)
    assert is_as_installed(os.getpid(), start + 5000, place)
    copy[5100:5104] = b"\xc3\xc3\xc3\xc3"
    assert not is_as_installed(os.getpid(), start + 5000, place)
    assert is_as_installed(os.getpid(), start + 1000, place), "elsewhere it is as it was"
    vdso = peek.Region(start, start + 8192, "[vdso]", 0)
    assert not is_as_installed(os.getpid(), start + 1000, vdso)
    for path in ("/nowhere/libc.so.6", str(Path(library.path).parent)):
        assert not is_as_installed(os.getpid(), start, peek.Region(start, start + 8192, path, 0))
    assert not is_as_installed(os.getpid(), 4096, peek.Region(4096, 8192, library.path, 0))
