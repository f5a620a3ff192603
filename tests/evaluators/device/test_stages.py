"""The clock of a measurement's stages, in the worker and in the judge process."""

from __future__ import annotations

import pytest

from evaluators.device import watchdog
from evaluators.device.watchdog import Stages
from evaluators.records.evaluation import Stage


class Time:
    """Stands in for the module `time`, and stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr(watchdog, "time", found)
    return found


def test_the_judge_process_refines_what_the_worker_has_seen(time: Time) -> None:
    said: list[str] = []
    stages = Stages(said.append)
    time.now = 2.0
    stages.was(Stage.OPENING)
    time.now = 2.5
    stages.enter(Stage.LOADING)
    time.now = 4.0
    stages.enter(Stage.CHECKING)
    time.now = 7.0
    judged = {"canary": 0.25, "loading": 1.0, "baseline": 0.5, "checking": 1.0, "distributions": 1.75}
    stages.refine(judged)
    stages.enter(Stage.ENDING)
    time.now = 8.0
    found = stages.seconds()
    assert found == judged | {"opening": 2.0, "starting": 0.5, "ending": 1.0}
    assert sum(found.values()) == 8.0
    assert list(found) == [stage for stage in Stage if stage in found]
    assert said == ["loading", "checking", "ending"]


def test_a_second_try_adds_to_the_first(time: Time) -> None:
    stages = Stages(None)
    for _ in range(2):
        stages.enter(Stage.TIMING)
        time.now += 3.0
        stages.refine({"timing": 2.0, "drawing": 0.75})
        stages.enter(Stage.ENDING)
    assert stages.seconds() == {"starting": 0.5, "timing": 4.0, "drawing": 1.5, "ending": 0.0}


def test_without_the_judge_processs_account_the_workers_remains(time: Time) -> None:
    stages = Stages(None)
    stages.enter(Stage.TIMING)
    time.now = 3.0
    stages.refine({})
    assert stages.seconds() == {"starting": 0.0, "timing": 3.0}
