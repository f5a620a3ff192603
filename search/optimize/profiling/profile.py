"""Profiles a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evaluators.reference.cost.machine_peaks import device_name, peaks_of
from evaluators.suites.traced.call import TracedCall
from evaluators.suites.traced.grammar import call_of
from evaluators.system.user_cache import cache_folder
from kernel_library.catalogue.entry import Entry, architecture_of
from search.optimize.models.source import LoadedModel, model_errors
from search.optimize.profiling.record import Profile, ShapeTime
from search.optimize.profiling.recording import RecordedRun, record
from search.optimize.profiling.targets import Machine, chains_of, merge_shapes, of_both_passes, operators_of
from search.optimize.profiling.timing import ProfileTiming, measure

ALIKE = 0.999
"""Least share of calls that must match the recorded run; below it the profile has a note."""
SLOWED = 1.25
"""Largest ratio of the operators' traced time to the iteration's time; above it the profile has a note."""


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """A model at one shape, with a recorded run and its timing."""

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
    """Profiles a model, given once per input shape, against the library's `entries`. `cache`: file of the
    machine's measured peaks; None: the one in the user's cache. Raises UsageError for an error in the
    model."""
    import torch

    found = []
    for each in models:
        with model_errors(each.title):
            say(f"recording one run{f' at {each.shape}' if each.shape else ''}")
            run = record(each)
            operators = [call.operator for call in run.calls]
            timing = measure(each, operators, warmup=warmup, iterations=iterations, say=say)
        found.append(MeasuredModel(model=each, run=run, timing=timing))
    say("measuring the machine's peak rates (cached after the first time)")
    model, weights = models[0], [each.weight for each in models]
    kept = cache or cache_folder() / "machine_peaks.json"
    machine = Machine(
        peaks=peaks_of(model.device, kept), architecture=_architecture(model.device), entries=entries
    )
    name, of = ("both_passes", of_both_passes) if model.backward else ("chains", chains_of)
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
        operators=tuple(
            merge_shapes([operators_of(each.run, each.timing, machine) for each in found], weights)
        ),
        **{name: tuple(merge_shapes([of(each.run, each.timing, machine) for each in found], weights))},
        notes=tuple(note for each in found for note in _notes(each)),
        shapes=tuple(
            ShapeTime(name=each.model.shape, weight=each.model.weight, wall_ms=each.timing.wall_ms)
            for each in found
        ),
    )


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """The weighted mean; the weights sum to 1."""
    return sum(value * weight for value, weight in zip(values, weights, strict=True))


def calls_of(profile: Profile) -> list[TracedCall]:
    """The operator calls of an iteration at each shape, each once with its count. Calls whose arguments the
    trace format cannot express are left out."""
    counts: Counter[tuple[str, str]] = Counter()
    for target in profile.operators:
        for case in target.cases:
            counts[target.operators[0], case.arguments[0]] += case.calls
    return [replace(call_of(*each), count=count) for each, count in counts.items() if each[1]]


def _notes(measured: MeasuredModel) -> list[str]:
    run, timing, notes = measured.run, measured.timing, []
    if timing.alike < ALIKE:
        notes.append(
            f"the model does not call the same operators every time: {timing.alike:.0%} of the calls match "
            "the recorded run, and only those are timed"
        )
    traced_ms = sum(timing.call_ms) + timing.other_ms
    if traced_ms > SLOWED * timing.wall_ms:
        notes.append(
            f"operators took {traced_ms:.3g} ms per traced iteration, but an untraced one takes "
            f"{timing.wall_ms:.3g} ms: calls are short or the machine is busy, so shares are rough"
        )
    if unwritable := sorted({call.operator for call in run.calls if not call.arguments}):
        notes.append(f"the trace format cannot express the arguments of {', '.join(unwritable)}")
    return [f"{measured.model.shape}: {each}" if measured.model.shape else each for each in notes]


def _architecture(device: str) -> str:
    if device == "cpu":
        return architecture_of(device, "")
    import torch

    return architecture_of(device, ".".join(map(str, torch.cuda.get_device_capability())))
