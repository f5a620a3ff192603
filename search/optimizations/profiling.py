"""Makes the profile of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from evaluators.reference.machine_peaks import device_name, peaks_of
from evaluators.suites.trace_grammar import parse_arguments
from evaluators.suites.traced_call import Call
from evaluators.system.user_cache import cache_folder
from kernel_library.entry import Entry, architecture_of
from search.optimizations.model_source import LoadedModel, told
from search.optimizations.profile import Profile
from search.optimizations.recording import RecordedRun, record
from search.optimizations.targets import Machine, chains_of, operators_of
from search.optimizations.timing import Timing, measure

ALIKE = 0.999
"""Of the calls that have to be those of the recorded run."""
SLOWED = 1.25
"""Times as long as an iteration its operators took in the trace: they were disturbed."""


def profile_of(
    model: LoadedModel,
    *,
    entries: Sequence[Entry],
    warmup: int,
    iterations: int,
    say: Callable[[str], None],
    cache: Path | None = None,
) -> Profile:
    """Where the model's time goes. `cache`: the file of the machine's peaks, None for the user's own; `say`
    is told what is being done. Raises UsageError for what the model raises."""
    import torch

    with told(model.name):
        say("recording a run")
        run = record(model)
        operators = [call.operator for call in run.calls]
        timing = measure(model, operators, warmup=warmup, iterations=iterations, say=say)
    say("measuring the machine's peaks, or reading them from an earlier run")
    kept = cache or cache_folder() / "machine_peaks.json"
    machine = Machine(
        peaks=peaks_of(model.device, kept), architecture=_architecture(model.device), entries=entries
    )
    return Profile(
        model=model.name,
        device=model.device,
        device_name=device_name(model.device),
        dtype=model.dtype,
        backward=model.backward,
        torch=torch.__version__,
        iterations=iterations,
        wall_ms=timing.wall_ms,
        kernels=timing.kernels,
        other_ms=timing.other_ms,
        operators=tuple(operators_of(run, timing, machine)),
        chains=tuple(chains_of(run, timing, machine)),
        notes=tuple(_notes(run, timing)),
    )


def calls_of(profile: Profile) -> list[Call]:
    """The calls of the operators of an iteration, each once with its count; none of those for whose arguments
    the trace format has no words."""
    found = []
    for target in profile.operators:
        for case in target.cases:
            if case.arguments[0]:
                arguments, keywords = parse_arguments(case.arguments[0])
                operator = target.operators[0]
                found.append(
                    Call(operator=operator, arguments=arguments, keywords=keywords, count=case.calls)
                )
    return found


def _notes(run: RecordedRun, timing: Timing) -> list[str]:
    notes = []
    if timing.alike < ALIKE:
        notes.append(
            f"the model does not call the same operators every time: {timing.alike:.0%} of the calls are "
            "those of the recorded run, and the times are of these"
        )
    traced_ms = sum(timing.call_ms) + timing.other_ms
    if traced_ms > SLOWED * timing.wall_ms:
        notes.append(
            f"operators took {traced_ms:.3g} ms in the traced iterations, and others {timing.wall_ms:.3g} ms "
            "as a whole: they are short, or the machine is busy, and the shares are rough"
        )
    if unwritable := sorted({call.operator for call in run.calls if not call.arguments}):
        notes.append(f"arguments that the trace format has no words for: {', '.join(unwritable)}")
    return notes


def _architecture(device: str) -> str:
    if device == "cpu":
        return architecture_of(device, "")
    import torch

    return architecture_of(device, ".".join(map(str, torch.cuda.get_device_capability())))
