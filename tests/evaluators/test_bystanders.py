"""Who keeps the cores busy: others, or the processes that are asked about."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from evaluators import bystanders
from evaluators.bystanders import Bystanders
from tests.evaluators.conftest import burning


@pytest.fixture
def burners(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A process for each of two cores, which is all that the machine is said to have."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with burning(2) as pids:
        yield pids


def test_others_that_compute_make_the_machine_busy(burners: list[int]) -> None:
    watched = Bystanders([os.getpid()])
    time.sleep(0.5)
    assert watched.busy([os.getpid()])


def test_those_that_are_asked_about_do_not(burners: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [os.getpid(), *burners]
    watched = Bystanders(ours)
    time.sleep(0.5)
    # Whoever else computes on the machine of a test is let be.
    monkeypatch.setattr(bystanders, "BUSY_SHARE", bystanders.BUSY_SHARE + _share_of_the_rest(ours))
    assert not watched.busy(ours)


def _share_of_the_rest(ours: list[int]) -> float:
    before = bystanders._others_s(ours)
    time.sleep(0.3)
    return (bystanders._others_s(ours) - before) / (0.3 * 2)
