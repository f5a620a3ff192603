"""Owns one device and evaluates kernels on it: the processes of a measurement, their deadlines, and the
statuses.

It never imports a candidate and never touches the device itself, so no kernel can crash it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from evaluators.base.cause import cause_of
from evaluators.build.toolchain import missing_file, missing_module, missing_tool
from evaluators.device.candidate_runner import CandidateRunner
from evaluators.device.candidate_turns import compared
from evaluators.device.child_processes import (
    DeviceProcesses,
    ProblemProcesses,
    RunnerSpecs,
    UnansweredProblem,
    UnfitProblem,
    WorkerBroken,
    thread_variables,
)
from evaluators.device.open_problems import OpenProblems
from evaluators.device.settings import Settings
from evaluators.device.watchdog import Stages, Unresponsive, Watchdog
from evaluators.isolation import confinement
from evaluators.records.evaluation import CLOCKS_AFTER, CLOCKS_BEFORE, NOT_HERE, Evaluation, Stage, Status
from evaluators.records.opening import Opening, OpeningStep, Steps, joined
from evaluators.records.probe import Probe, TraceMarks
from evaluators.records.problem import Kernel, Problem
from evaluators.records.reference_audit import ReferenceAudit
from evaluators.records.timing import SABOTAGED, Effort
from evaluators.records.verdict import Verdict
from evaluators.system import machine_memory
from evaluators.system.channel import ChannelClosed, ChannelTimeout, Message
from evaluators.system.cuda_driver import Gpu, first_gpu
from evaluators.system.nvml import state_of

logger = logging.getLogger(__name__)

KILLED = "it died of SIGKILL"
"""In the log of a process that the system has killed, as it does when memory runs out."""
ACCUSATIONS = 2
"""How often a kernel must have slowed the baseline down to be rejected. Others may use the device for a
while, but a kernel that does it on purpose does it again."""


class Worker:
    """One device's evaluator. Not thread-safe: one measurement at a time."""

    def __init__(self, *, root: Path, settings: Settings, visible_gpu: str = "") -> None:
        """`root` is the folder for scratch folders, the same as the builds'. `visible_gpu` is the value of
        CUDA_VISIBLE_DEVICES for its processes, "" to leave it unchanged."""
        self._root, self._settings = root, settings
        self._environment = confinement.clean_environment()
        if visible_gpu:
            self._environment["CUDA_VISIBLE_DEVICES"] = visible_gpu
        self._device_processes: DeviceProcesses | None = None
        self._open = OpenProblems()
        self._kept: CandidateRunner | None = None
        """The last candidate's runner, if another of its cases is measured next."""
        self._warned: set[tuple[str, str]] = set()
        """The judge process's warnings so far, each with its problem."""
        self._range_kept: set[str] = set()
        """Ids of problems whose references have failed on the device outside their inputs' range."""

    @cached_property
    def gpu(self) -> Gpu:
        """The GPU, as the driver reports it once. Raises OSError if there is none."""
        return first_gpu(self._environment)

    def prepare(self, device: str) -> DeviceProcesses:
        """Starts what every problem on this kind of device needs, if it is not running. Raises ChannelClosed
        or OSError."""
        if self._device_processes is not None and self._device_processes.device != device:
            self.close()
        if self._device_processes is None:
            variables = self._environment | thread_variables(device, self._settings.threads)
            self._device_processes = DeviceProcesses(variables, device)
        return self._device_processes

    def open(self, problem: Problem) -> dict[str, str]:
        """Opens the problem: reference, baseline and shared memory. Returns the facts of device and software.
        Raises WorkerBroken with the reason, UnfitProblem if it is the reference."""
        return self._opened(problem).facts

    def opening(self, problem: Problem) -> Opening:
        """How long opening the problem takes, or took if it is open, step by step. Raises as `open` does."""
        return self._opened(problem).opening

    def audit(self, problem: Problem) -> ReferenceAudit:
        """How well the problem's reference can judge kernels. No problem is open afterwards. Raises
        WorkerBroken if the reference is not at fault, UnfitProblem if this machine cannot judge with it."""
        with self._closing_on_failure("the evaluator's own processes did not start"):
            device_processes = self.prepare(problem.device)
            self._end_kept()
            self._open.make_room(all_of_it=True)
            processes = ProblemProcesses(device_processes, self._root, self._specs(problem))
            try:
                processes.judge.send({"op": "audit", "problem": asdict(problem)})
                answer = self._watch(processes, self._settings.open_timeout_s).answer(processes.eager)
            except Unresponsive as unresponsive:
                answer = {"op": "unfit", "error": f"it takes too long: {unresponsive}"}
            finally:
                if processes.eager is not None:
                    processes.eager.channel.close()
            processes.close()
        if isinstance(answer, Verdict) or answer["op"] != "audited":
            self.close()
            text = answer.log if isinstance(answer, Verdict) else self._error_of(problem, answer)
            if text.startswith(NOT_HERE):
                raise UnfitProblem(text)
            return ReferenceAudit(problem=problem.name, unfit=cause_of(text))
        return ReferenceAudit.from_json(answer["audit"])

    def measure(
        self,
        problem: Problem,
        kernel: Kernel,
        archive: bytes,
        *,
        effort: Effort = Effort.USUAL,
        more: bool = False,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """Checks and times a built kernel. Raises WorkerBroken if the kernel is not at fault.

        Args:
            effort: how far to check it, and how long to time it.
            more: another case of the kernel's problem is measured next. The kernel's process is kept for it
                if the kernel is right and neither case is timed. Large cases need separate processes, because
                a process does not free the memory of a case.
            on_stage: called when a stage begins.
        """
        stages = Stages(on_stage)
        try:
            processes = self._opened(problem, stages)
        except WorkerBroken:
            self._end_kept()
            raise
        facts = {**processes.facts, **self._clocks(problem, CLOCKS_BEFORE)}
        for _ in range(ACCUSATIONS):
            with self._closing_on_failure("the judge process, the fork server or a runner of ours died"):
                runner = self._runner(processes, kernel, archive)
                keeps = more and not problem.timed and processes.is_small
                verdict = self._try_candidate(processes, runner, effort, keeps, stages)
            if verdict.rule != SABOTAGED:
                break
            self._require_recovery(processes, verdict)
        facts |= self._clocks(problem, CLOCKS_AFTER)
        if verdict.status in (Status.COMPILE_ERROR, Status.RUNTIME_ERROR) and (
            why := missing_tool(
                kernel.source,
                verdict.log,
                device=problem.device,
                root=self._root,
                architecture=processes.facts.get("architecture", ""),
            )
        ):
            verdict = replace(verdict, status=Status.INFRASTRUCTURE_ERROR, log=f"{why}\n{verdict.log}")
        return verdict.evaluation(facts, stages.seconds())

    def probe(self, problem: Problem, kernel: Kernel, archive: bytes) -> Probe:
        """Times a built probe of a timed problem, within the limits of an evaluation. Raises WorkerBroken if
        the probe is not at fault."""
        stages = Stages(None)
        processes = self._opened(problem, stages)
        order = {
            "op": "probe",
            "session": processes.problem.id,
            "plan": asdict(self._settings.plan),
            "marks": asdict(TraceMarks.of(kernel.source)),
        }
        with self._closing_on_failure("the judge process, the fork server or a runner of ours died"):
            runner = CandidateRunner(processes, kernel, self._root, archive)
            try:
                processes.hand_over(order, [runner.child])
                watch = self._watch(processes, self._settings.timeout_s)
                answer = watch.answer(runner.child, runner.scratch, stages)
            finally:
                stages.enter(Stage.ENDING)
                runner.end()
        if isinstance(answer, Verdict):  # it died, or was ended
            found = Probe.failed(answer.status, answer.log)
        else:
            found = Probe.from_json(answer["probe"])
        return replace(found, device_s=sum(stages.seconds().values()))

    def _clocks(self, problem: Problem, when: str) -> dict[str, str]:
        """The GPU's present clocks as a fact, if they are available."""
        told = state_of(self.gpu.uuid).text() if problem.device == "cuda" else ""
        return {when: told} if told else {}

    def compare(
        self, problem: Problem, kernels: Sequence[Kernel], archives: Sequence[bytes], *, effort: Effort
    ) -> list[Evaluation]:
        """Checks distinct built kernels and times them against one another and eager in turns: one evaluation
        each, whose samples are aligned by turn. A kernel that fails has its failing status, and the others
        continue. Slow checks (timing checks on a GPU, attribution) are left to the kernels' separate
        evaluations. Raises WorkerBroken if no kernel is at fault."""
        processes = self._opened(problem)
        start = time.monotonic()
        plan = asdict(self._settings.plan_of(effort))
        runners: list[CandidateRunner] = []
        with (
            self._closing_on_failure("the judge process, the fork server or a runner of ours died"),
            ExitStack() as ending,
        ):
            for kernel, archive in zip(kernels, archives, strict=True):
                runners.append(CandidateRunner(processes, kernel, self._root, archive))
                ending.callback(runners[-1].end)
            verdicts = compared(
                processes, runners, plan, effort, lambda: self._watch(processes, self._settings.timeout_s)
            )
        own_s = (time.monotonic() - start) / len(kernels)
        return [
            verdict.evaluation(
                processes.facts,
                {**verdict.stages_s, Stage.COMPARING.value: own_s - sum(verdict.stages_s.values())},
            )
            for verdict in verdicts
        ]

    def close(self) -> None:
        """Ends every process."""
        if self._device_processes is not None:
            self._device_processes.close()
        self._device_processes = None
        self._open.forget()
        kept, self._kept = self._kept, None
        if kept is not None:  # its process ended with the fork server
            kept.leave()

    def _end_kept(self) -> None:
        """Ends the kept runner, so that it does not run during other work."""
        kept, self._kept = self._kept, None
        if kept is not None:
            with self._closing_on_failure("a runner could not be ended"):
                kept.end()

    def _opened(self, problem: Problem, stages: Stages | None = None) -> ProblemProcesses:
        """The problem's processes. Problems that use little memory stay open while others are in use.
        `stages` counts the opening, if there is one."""
        if problem.timed:
            self._end_kept()
        if (known := self._open.use(problem.id)) is None:
            known = self._newly_opened(problem)
            self._open.add(known)
            if stages is not None:
                stages.was(Stage.OPENING)
        return known

    def _newly_opened(self, problem: Problem) -> ProblemProcesses:
        steps = Steps()
        with self._closing_on_failure("the evaluator's own processes did not start"):
            with steps.step(OpeningStep.STARTING):
                device_processes = self.prepare(problem.device)
            with steps.step(OpeningStep.ENDING):
                self._open.make_room()
            with steps.step(OpeningStep.FORKING):
                processes = ProblemProcesses(device_processes, self._root, self._specs(problem))
            answer = self._ask_to_open(processes)
            if isinstance(answer, Verdict):  # what became of the baseline's runner
                if KILLED in answer.log:
                    text = f"{NOT_HERE}: the system has killed its process; {machine_memory.words()} now"
                    raise UnfitProblem(f"{text}\n{answer.log}")
                raise UnfitProblem(f"the reference cannot be run: {answer.log}")
            if answer["op"] == "asserted" and problem.id not in self._range_kept:
                self._range_kept.add(problem.id)
                self.close()  # the processes can no longer use the device
                return self._newly_opened(problem)
            if answer["op"] != "opened" and answer.get("of_memory") and self._open:
                self.close()
                return self._newly_opened(problem)
            if answer["op"] == "opened":
                with steps.step(OpeningStep.FORKING):
                    processes.set_facts(answer["facts"])
                seconds = joined(steps.seconds(), answer["seconds"])
                processes.opening = Opening(problem=problem.name, seconds=seconds)
                self._require_isolation(processes.facts["isolation"])
                return processes
            if not answer.get("intact"):
                raise UnfitProblem(self._error_of(problem, answer))
            processes.close()
        raise UnfitProblem(self._error_of(problem, answer))  # the other processes continue

    def _error_of(self, problem: Problem, answer: Message) -> str:
        """Why the problem could not be opened, first of all what this machine lacks."""
        error = str(answer["error"])
        how: Any = {"device": problem.device, "root": self._root}
        lacking = missing_module(error) or missing_tool(problem.source, error, **how) or missing_file(error)
        return f"{NOT_HERE}: {lacking}\n{error}" if lacking else error

    def _ask_to_open(self, processes: ProblemProcesses) -> Message | Verdict:
        order = {
            "op": "open",
            "session": processes.problem.id,
            "problem": asdict(processes.problem),
            "options": self._settings.session_options(processes.problem.id in self._range_kept),
        }
        eager = processes.eager
        processes.hand_over(order, [eager] if eager is not None else [])
        try:
            return self._watch(processes, self._settings.open_timeout_s).answer(eager)
        except Unresponsive as unresponsive:
            limit = "evaluator.open_timeout_s sets this limit"
            raise UnansweredProblem(f"the reference cannot be run: {unresponsive}; {limit}") from unresponsive

    def _require_isolation(self, reached: str) -> None:
        demanded = self._settings.isolation
        if missing := confinement.missing(reached, demanded):
            raise WorkerBroken(
                f"evaluator.isolation={demanded} is not available: this machine provides {reached}, "
                f"without {' and '.join(missing)}"
            )

    def _runner(self, processes: ProblemProcesses, kernel: Kernel, archive: bytes) -> CandidateRunner:
        """The kept runner if it fits, otherwise a new one."""
        kept = self._kept
        if kept is not None and kept.can_continue(processes.problem, kernel):
            self._kept = None
            return kept
        self._end_kept()
        return CandidateRunner(processes, kernel, self._root, archive)

    def _try_candidate(
        self,
        processes: ProblemProcesses,
        runner: CandidateRunner,
        effort: Effort,
        keeps: bool,
        stages: Stages,
    ) -> Verdict:
        """`keeps`: keep the runner if the candidate is right; it is ended otherwise."""
        settings, thorough = self._settings, effort is Effort.THOROUGH
        timeout_s = settings.thorough_timeout_s if thorough else settings.timeout_s
        order = {
            "op": "judge",
            "session": processes.problem.id,
            "scratch": str(runner.scratch),
            "plan": asdict(settings.plan_of(effort)),
            "effort": effort.value,
            "keep": keeps,
        }
        try:
            new, runner.is_new = [runner.child] if runner.is_new else [], False
            processes.hand_over(order, [*new, *(processes.fork_compiled() if thorough else [])])
            answer = self._watch(processes, timeout_s).answer(runner.child, runner.scratch, stages)
            verdict = answer if isinstance(answer, Verdict) else Verdict.from_message(answer)
            stages.refine(verdict.stages_s)
            if keeps and verdict.status is Status.CORRECT:
                self._kept = runner
            return verdict
        finally:
            stages.enter(Stage.ENDING)
            if self._kept is not runner:
                with self._closing_on_failure("a runner could not be ended"):
                    runner.end()

    def _require_recovery(self, processes: ProblemProcesses, verdict: Verdict) -> None:
        """Raises WorkerBroken if the baseline is still slow without the kernel that seemed to slow it
        down."""
        order = {
            "before_ms": verdict.before_ms,
            "before_calls": verdict.before_calls,
            "baseline_calls": verdict.baseline_calls,
        }
        with self._closing_on_failure("the judge process or the fork server died"):
            processes.judge.send({"op": "recheck", "session": processes.problem.id, **order})
            answer = self._watch(processes, self._settings.timeout_s).baseline_answer()
        if answer["slow"]:
            raise WorkerBroken(
                "the baseline is slower than before even without a kernel; the machine is busy"
            )

    def _watch(self, processes: ProblemProcesses, timeout_s: float) -> Watchdog:
        return Watchdog(
            processes,
            timeout_s=timeout_s,
            memory_bytes=int(self._settings.memory_gb * 2**30),
            scratch_bytes=int(self._settings.scratch_gb * 2**30),
            warn=lambda text: self._warn(processes.problem, text),
        )

    def _warn(self, problem: Problem, text: str) -> None:
        """Logs a warning of the judge process once per problem."""
        if (problem.id, text) not in self._warned:
            self._warned.add((problem.id, text))
            logger.warning("%s: %s", problem.name, cause_of(text))

    def _specs(self, problem: Problem) -> RunnerSpecs:
        settings = self._settings
        return RunnerSpecs(
            problem=problem,
            gpu=self.gpu if problem.device == "cuda" else None,
            cpu_s=int(max(settings.timeout_s, settings.thorough_timeout_s)) * 64,
            compile_mode=settings.compile_mode,
        )

    @contextmanager
    def _closing_on_failure(self, what: str) -> Iterator[None]:
        """If anything of ours fails in the block, ends all processes and raises WorkerBroken."""
        try:
            yield
        except WorkerBroken:
            self.close()
            raise
        except (ChannelClosed, ChannelTimeout, OSError) as error:
            said, killed = "", ""
            if self._device_processes is not None:
                said = self._device_processes.errors.end()
                killed = self._device_processes.says_killed() if isinstance(error, ChannelClosed) else ""
            self.close()
            raise WorkerBroken(f"{what}: {killed or error}\n{said}".strip()) from error
