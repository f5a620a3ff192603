"""Several candidates in the judge process at once, whose turns are watched one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evaluators.device.candidate_runner import CandidateRunner
from evaluators.device.child_processes import ProblemProcesses
from evaluators.device.watchdog import Watchdog
from evaluators.records.timing import Effort
from evaluators.records.verdict import Verdict


def compared(
    processes: ProblemProcesses,
    runners: Sequence[CandidateRunner],
    plan: dict[str, Any],
    effort: Effort,
    watch: Callable[[], Watchdog],
) -> list[Verdict]:
    """The verdicts, in order. Each turn is watched by a new `watch`, and so has as much time as a separate
    evaluation. A candidate that drops out is ended. Raises WorkerBroken, ChannelClosed or ChannelTimeout."""
    judge = processes.judge
    order = {"op": "compare", "session": processes.problem.id, "plan": plan, "effort": effort}
    processes.hand_over(order, [each.child for each in runners])
    watch().baseline_answer()
    lost: dict[int, Verdict] = {}
    while True:
        judge.send({"op": "next"})
        answer = watch().baseline_answer()
        if answer["op"] == "verdicts":
            found = map(Verdict.from_message, answer["verdicts"])
            return [lost.get(number, verdict) for number, verdict in enumerate(found)]
        judge.send({"op": "go"})
        if answer["candidate"] is None:
            watch().baseline_answer()
            continue
        runner = runners[answer["candidate"]]
        turned = watch().answer(runner.child, runner.scratch)
        if isinstance(turned, Verdict):
            lost[answer["candidate"]] = turned
        if isinstance(turned, Verdict) or turned["failed"]:  # what it has begun ends with it
            runner.end()
