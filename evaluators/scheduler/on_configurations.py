"""Chooses among the configurations that a kernel declares, by successive halving (Jamieson & Talwalkar 2016).

All are built, checked in short and timed next to eager; the faster half is timed again, and so on. The best
one is then judged as any kernel is, in a new process and on its own source: winning the comparison proves
nothing. Decisions depend on the times alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evaluators.records.configurations import Configuration, ConfigurationLimits
from evaluators.records.evaluation import ConfigurationResult, Evaluation, Stage, Status
from evaluators.records.problem import Problem
from evaluators.records.time_spent import DeviceLease, summed
from evaluators.records.timing import Effort, paired_speedup
from evaluators.scheduler.host import OnStage
from evaluators.scheduler.job import Job

MOST_TOGETHER = 8
"""Configurations in one session: each takes a process and memory on the device."""
MOST_JUDGED = 3
"""Configurations to judge at most, if those that were faster turn out to be wrong."""

CompareJobs = Callable[[Problem, list[Job], Effort], Awaitable[dict[str, Evaluation]]]
CanBuild = Callable[[Job], Awaitable[bool]]
Judge = Callable[[Job], Awaitable[Evaluation]]


@dataclass
class _Progress:
    """The last measurement of each configuration, by kernel id, and the device time of all of them, with
    their leases."""

    measured: dict[str, Evaluation] = field(default_factory=dict)
    device_s: float = 0.0
    leases: list[DeviceLease | None] = field(default_factory=list)


class OnConfigurations:
    """A pool's evaluations over configurations. `compare` returns the verdicts on several kernels in one
    session, by kernel id; `judge` the verdict on one kernel. `can_build` builds a kernel, and says whether
    that succeeded."""

    def __init__(
        self, compare: CompareJobs, judge: Judge, can_build: CanBuild, limits: ConfigurationLimits
    ) -> None:
        self._compare, self._judge, self._can_build, self._limits = compare, judge, can_build, limits

    async def evaluate(self, job: Job, configurations: Sequence[Configuration]) -> Evaluation:
        """The verdict on the best configuration, with the results of all. A wrong one gives way to the next
        best; one that cheats is the verdict. If none could be timed, the first is judged, which has the
        default values. If that one cannot be built for a GPU, no other is: all have the same code."""
        job.on_stage = _changes(job.on_stage)
        jobs = {each.kernel.id: job.of_kernel(each.kernel) for each in configurations}
        progress, default = _Progress(), next(iter(jobs.values()))
        if not await self._can_build(default):
            verdict = await self._judge(default)
            found = {default.kernel.id: verdict}
            return replace(verdict, configurations=self._results(configurations, [], progress, found, ""))
        order = await self._by_speed(list(jobs.values()), progress) if job.problem.timed else []
        failed: dict[str, Evaluation] = {}
        for name in order[:MOST_JUDGED] or list(jobs)[:1]:
            verdict = await self._judge(jobs[name])
            if verdict.status is Status.CORRECT or not verdict.status.is_of_the_kernel:
                break
            failed[name] = verdict
            if verdict.status is Status.REJECTED:
                break
        chosen = name if verdict.status is Status.CORRECT else ""
        earlier = [each for id, each in failed.items() if id != name]
        comparing_s = progress.device_s + sum(each.device_s for each in earlier)
        return replace(
            verdict,
            device_s=comparing_s + verdict.device_s,
            build_s=sum(each.build.seconds for each in jobs.values() if each.build is not None),
            stages_s={Stage.CONFIGURATIONS.value: comparing_s, **verdict.stages_s},
            lease=summed([*progress.leases, *(each.lease for each in earlier), verdict.lease]),
            configurations=self._results(configurations, order, progress, failed, chosen),
        )

    async def _by_speed(self, jobs: Sequence[Job], progress: _Progress) -> list[str]:
        """The ids of the configurations that were right so far, best first."""
        order: list[str] = []
        left = list(jobs)
        while len(left) > 1:
            together = await self._measure(left, progress)
            ids = [each.kernel.id for each in left]
            ranked = by_speed({id: progress.measured[id] for id in ids if id in progress.measured})
            order = [*ranked, *(id for id in order if id not in ids)]
            if not ranked or (together and is_clear(ranked, progress.measured)) or self._is_over(progress):
                break
            kept = ranked[: (len(ranked) + 1) // 2]
            left = [each for each in jobs if each.kernel.id in kept]
        return order

    async def _measure(self, jobs: Sequence[Job], progress: _Progress) -> bool:
        """Measures each configuration once if there is time. Returns whether one session measured all."""
        waiting, size, sessions = list(jobs), MOST_TOGETHER, 0
        while waiting and not self._is_over(progress):
            found = await self._compare(waiting[0].problem, waiting[:size], Effort.QUICK)
            sessions += 1
            progress.device_s += sum(each.device_s for each in found.values())
            progress.leases += [each.lease for each in found.values()]
            measured = {id: each for id, each in found.items() if each.status.is_of_the_kernel}
            if not measured and size == 1:
                break  # the evaluation that follows says why
            if not measured:
                size = 1  # the device may have room for one at a time only
            progress.measured |= measured
            waiting = [each for each in waiting if each.kernel.id not in measured]
        return sessions == 1 and not waiting

    def _is_over(self, progress: _Progress) -> bool:
        return progress.device_s >= self._limits.seconds

    def _results(
        self,
        configurations: Sequence[Configuration],
        order: Sequence[str],
        progress: _Progress,
        failed: dict[str, Evaluation],
        chosen: str,
    ) -> tuple[ConfigurationResult, ...]:
        """The table of all configurations: the chosen one, the others by speed, those that are excluded."""
        found = progress.measured | failed
        listed = dict.fromkeys([chosen, *(id for id in order if id not in failed)])
        places = {id: place for place, id in enumerate(listed)}
        limit = f" within evaluator.configs.seconds={self._limits.seconds:g}" * self._is_over(progress)
        results = []
        for each in sorted(configurations, key=lambda each: places.get(each.kernel.id, len(places))):
            evaluation, is_chosen = found.get(each.kernel.id), each.kernel.id == chosen
            timing, cause = evaluation.timing if evaluation else None, ""
            if evaluation is not None and timing is None:
                cause = ": ".join(filter(None, (evaluation.status.value, evaluation.cause)))
            elif evaluation is None and not is_chosen:
                cause = f"not measured{limit}"
            timing = timing and replace(timing, kernel_samples_ms=(), eager_samples_ms=())
            results.append(
                ConfigurationResult(values=each.values, timing=timing, cause=cause, chosen=is_chosen)
            )
        return tuple(results)


def _changes(on_stage: OnStage) -> OnStage:
    """Passes a stage on if it differs from the last one: all builds are one stage."""
    last = ""

    def enter(stage: str) -> None:
        nonlocal last
        if stage != last:
            last = stage
            on_stage(stage)

    return enter


def by_speed(measured: Mapping[str, Evaluation]) -> list[str]:
    """The kernels that have a time, fastest first, by their speedups over eager. Ties keep their order."""
    timed = [id for id, each in measured.items() if each.timing is not None]
    return sorted(timed, key=lambda id: -measured[id].speedup)


def is_clear(ranked: Sequence[str], measured: Mapping[str, Evaluation]) -> bool:
    """Whether the first of several kernels, all measured in one session, is significantly faster than every
    other."""
    first, *others = [timing.kernel_samples_ms for id in ranked if (timing := measured[id].timing)]
    return all(len(each) == len(first) and paired_speedup(first, each)[1] > 1 for each in others)
