"""Makes the profile of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evaluators.reference.cost.machine_peaks import device_name, peaks_of
from evaluators.suites.trace_grammar import call_of
from evaluators.suites.traced_call import TracedCall
from evaluators.system.user_cache import cache_folder
from kernel_library.catalogue.entry import Entry, architecture_of
from search.optimize.models.source import LoadedModel, told
from search.optimize.profiling.record import Profile, ShapeTime
from search.optimize.profiling.recording import RecordedRun, record
from search.optimize.profiling.targets import Machine, chains_of, merged, operators_of
from search.optimize.profiling.timing import ProfileTiming, measure

ALIKE = 0.999
"""Of the calls that have to be those of the recorded run."""
SLOWED = 1.25
"""Times as long as an iteration its operators took in the trace: they were disturbed."""


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """A model at one shape, with a run of it and its times."""

    model: LoadedModel
    run: RecordedRun
    timing: ProfileTiming


def profile_of(
    models: Sequence[LoadedModel],
    *,
    entries: Sequence[Entry],
    warmup: int,
    iterations: int,
    say: Callable[[str], None],
    cache: Path | None = None,
) -> Profile:
    """Where the time of a model goes, which is given at each of its shapes. `cache`: the file of the
    machine's peaks, None for the user's own; `say` is told what is being done. Raises UsageError for what the
    model raises."""
    import torch

    found = []
    for each in models:
        with told(each.title):
            say(f"recording a run{f' at {each.shape}' if each.shape else ''}")
            run = record(each)
            operators = [call.operator for call in run.calls]
            timing = measure(each, operators, warmup=warmup, iterations=iterations, say=say)
        found.append(MeasuredModel(model=each, run=run, timing=timing))
    say("measuring the machine's peaks, or reading them from an earlier run")
    model, weights = models[0], [each.weight for each in models]
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
        wall_ms=_mean([each.timing.wall_ms for each in found], weights),
        kernels=round(_mean([each.timing.kernels for each in found], weights)),
        other_ms=_mean([each.timing.other_ms for each in found], weights),
        operators=tuple(merged([operators_of(each.run, each.timing, machine) for each in found], weights)),
        chains=tuple(merged([chains_of(each.run, each.timing, machine) for each in found], weights)),
        notes=tuple(note for each in found for note in _notes(each)),
        shapes=tuple(
            ShapeTime(name=each.model.shape, weight=each.model.weight, wall_ms=each.timing.wall_ms)
            for each in found
        ),
    )


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Of weights that come to 1."""
    return sum(value * weight for value, weight in zip(values, weights, strict=True))


def calls_of(profile: Profile) -> list[TracedCall]:
    """The calls of the operators of an iteration at each shape, each once with its count; none of those for
    whose arguments the trace format has no words."""
    counts: Counter[tuple[str, str]] = Counter()
    for target in profile.operators:
        for case in target.cases:
            counts[target.operators[0], case.arguments[0]] += case.calls
    return [replace(call_of(*each), count=count) for each, count in counts.items() if each[1]]


def _notes(measured: MeasuredModel) -> list[str]:
    run, timing, notes = measured.run, measured.timing, []
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
    return [f"{measured.model.shape}: {each}" if measured.model.shape else each for each in notes]


def _architecture(device: str) -> str:
    if device == "cpu":
        return architecture_of(device, "")
    import torch

    return architecture_of(device, ".".join(map(str, torch.cuda.get_device_capability())))
