"""Choosing among a kernel's configurations: by fake times, and once for real."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from evaluators.build.builder import Build
from evaluators.records.configurations import ConfigurationLimits, judged_kernel
from evaluators.records.evaluation import Evaluation, Stage, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.records.timing import Effort, timing_of
from evaluators.scheduler.host import OnStage
from evaluators.scheduler.pool import Pool
from tests.evaluators.scheduler.fake_host import ON_CPU, ON_GPU, FakeHost

WRONG = Evaluation(status=Status.INCORRECT, log="off by one", device_s=0.5)
DOES_NOT_COMPILE = Build(seconds=1.0, status=Status.COMPILE_ERROR, log="no such type")
LOST = Evaluation(status=Status.INFRASTRUCTURE_ERROR, log="no room")


def space(*values: int) -> Kernel:
    return Kernel(source=f'CONFIGS = {{"B": {[*values]}}}\nB = {values[0]}\n', language="cuda")


def value(kernel: Kernel) -> int:
    assert "CONFIGS" not in kernel.source, "only plain kernels are measured"
    return int(kernel.source.removeprefix("B = "))


class TimedHost(FakeHost):
    """A configuration's value is its time in ms. `compared_as` and `judged_as` give other verdicts; `room` is
    the number of kernels that the device can hold at once. Each session takes a second."""

    def __init__(self, *, spread: float = 0.0, room: int = 99, devices: int = 1, cores: int = 2) -> None:
        super().__init__(devices=devices, cores=cores, work_s=0.001)
        self.spread, self.room = spread, room
        self.compared_as: dict[int, Evaluation] = {}
        self.judged_as: dict[int, Evaluation] = {}
        self.sessions: list[list[int]] = []
        self.judged: list[tuple[int, bool]] = []

    async def compare(
        self,
        device: int,
        problem: Problem,
        kernels: Sequence[Kernel],
        archives: Sequence[bytes],
        effort: Effort,
    ) -> list[Evaluation]:
        await super().compare(device, problem, kernels, archives, effort)
        assert effort is Effort.QUICK
        self.sessions.append([value(each) for each in kernels])
        if self.room < min(2, len(kernels)):
            return [LOST for _ in kernels]
        found = [self.compared_as.get(value(each)) or self.timed(value(each)) for each in kernels]
        timed = [replace(each, device_s=1.0 / len(kernels)) for each in found[: self.room]]
        return timed + [LOST] * (len(kernels) - len(timed))

    async def measure(
        self,
        device: int,
        problem: Problem,
        kernel: Kernel,
        archive: bytes,
        effort: Effort,
        more: bool,
        on_stage: OnStage,
    ) -> Evaluation:
        await super().measure(device, problem, kernel, archive, effort, more, on_stage)
        self.judged.append((value(kernel), effort is Effort.THOROUGH))
        return self.judged_as.get(value(kernel)) or self.timed(value(kernel))

    def timed(self, ms: float) -> Evaluation:
        samples = [ms * (1 + self.spread * ((turn + int(ms)) % 3 - 1)) for turn in range(8)]
        return Evaluation(status=Status.CORRECT, timing=timing_of(samples, [100.0] * 8), device_s=0.5)


def judged(host: TimedHost, kernel: Kernel, problem: Problem = ON_GPU, **options: object) -> Evaluation:
    return asyncio.run(Pool(host).evaluate(problem, kernel, **options))  # type: ignore[arg-type]


def chosen(evaluation: Evaluation) -> object:
    return next((each.values["B"] for each in evaluation.configurations if each.chosen), None)


def test_the_fastest_configuration_gets_one_ordinary_verdict() -> None:
    host = TimedHost()
    stages: list[str] = []
    found = judged(host, space(40, 10, 30, 20), thorough=True, on_stage=stages.append)
    assert (chosen(found), host.judged) == (10, [(10, True)])
    assert host.sessions == [[40, 10, 30, 20]], "the first session is clear"
    assert [each.name for each in found.configurations] == ["B=10", "B=20", "B=30", "B=40"]
    assert stages == ["building", "measuring", "checking"]
    assert found.stages_s[Stage.CONFIGURATIONS] == 1.0
    assert (found.device_s, found.build_s) == (1.5, 1.0)
    assert host.built.total() == 4, "each is built once, also for the verdict"
    assert host.most["build"] == 2, "on all cores"
    assert judged_kernel(space(40, 10, 30, 20), found).source == "B = 10\n"


def test_half_of_them_are_measured_again_while_their_order_is_unclear() -> None:
    host = TimedHost(spread=0.9)
    found = judged(host, space(16, 15, 14, 13, 12, 11, 10, 9, 8, 7))
    assert host.sessions == [[16, 15, 14, 13, 12, 11, 10, 9], [8, 7], [11, 10, 9, 8, 7], [9, 8, 7], [8, 7]]
    assert chosen(found) == 7


def test_what_cannot_be_built_or_is_wrong_is_excluded_and_named() -> None:
    host = TimedHost()
    host.building = [lambda: Build(seconds=1.0), lambda: DOES_NOT_COMPILE]
    host.compared_as = {30: WRONG}
    host.judged_as = {10: WRONG}  # right in the short checks only
    found = judged(host, space(10, 20, 30, 40))
    assert (found.status, chosen(found)) == (Status.CORRECT, 40)
    assert [each for each, _ in host.judged] == [10, 40]
    assert {each.name: each.cause for each in found.configurations} == {
        "B=40": "",
        "B=10": "incorrect: off by one",
        "B=20": "compile_error: no such type",
        "B=30": "incorrect: off by one",
    }
    assert found.stages_s[Stage.CONFIGURATIONS] == 1.5, "a wrong finalist counts"


def test_a_kernel_that_cannot_be_built_with_its_default_values_is_built_once() -> None:
    """A language model's kernels with a dozen configurations each occupied all cores of a machine with builds
    that failed alike."""
    host = TimedHost()
    host.building = [lambda: DOES_NOT_COMPILE]
    found = judged(host, space(*range(10, 22)))
    assert (found.status, found.log, chosen(found)) == (Status.COMPILE_ERROR, "no such type", None)
    assert (host.built.total(), host.sessions) == (1, [])
    causes = [each.cause for each in found.configurations]
    assert causes == ["compile_error: no such type", *["not measured"] * 11]


def test_a_kernel_that_wins_and_then_cheats_is_rejected() -> None:
    host = TimedHost()
    host.judged_as = {10: Evaluation(status=Status.REJECTED, rule="roofline", log="too fast")}
    found = judged(host, space(10, 20))
    assert (found.status, found.rule, chosen(found)) == (Status.REJECTED, "roofline", None)
    assert [each for each, _ in host.judged] == [10], "no other configuration makes up for it"


@pytest.mark.parametrize("compared_as", [WRONG, LOST], ids=["wrong", "lost"])
def test_without_times_the_first_is_judged(compared_as: Evaluation) -> None:
    host = TimedHost()
    host.compared_as = dict.fromkeys((10, 20), compared_as)
    host.judged_as = {10: WRONG}
    found = judged(host, space(10, 20))
    assert (found.status, found.log, chosen(found)) == (Status.INCORRECT, "off by one", None)
    assert [each for each, _ in host.judged] == [10]


@pytest.mark.parametrize(("room", "sessions"), [(3, [5, 2]), (1, [5, 1, 1, 1, 1, 1])])
def test_as_many_at_once_as_the_device_has_room_for(room: int, sessions: list[int]) -> None:
    host = TimedHost(room=room)
    found = judged(host, space(50, 40, 30, 20, 10))
    assert list(map(len, host.sessions))[: len(sessions)] == sessions
    assert chosen(found) == 10


def test_device_time_is_limited() -> None:
    host = TimedHost()
    host.configs = ConfigurationLimits(seconds=1.0)
    found = judged(host, space(*range(20, 10, -1)))
    assert len(host.sessions) == 1
    assert chosen(found) == 13
    assert [each.cause for each in found.configurations[-2:]] == [
        "not measured within evaluator.configs.seconds=1"
    ] * 2


def test_an_invalid_declaration_is_a_compile_error_in_one_line() -> None:
    host = TimedHost()
    host.configs = ConfigurationLimits(most=2)
    found = judged(host, space(1, 2, 3))
    assert found.status is Status.COMPILE_ERROR
    assert found.log.startswith("CONFIGS has 3 combinations; evaluator.configs.most=2 is the limit")
    assert not host.built


def test_nothing_is_compared_without_times_or_a_choice() -> None:
    host = TimedHost()
    assert chosen(judged(host, space(20, 10), replace(ON_CPU, timed=False))) == 20
    assert chosen(judged(host, space(30))) == 30
    assert host.sessions == []
