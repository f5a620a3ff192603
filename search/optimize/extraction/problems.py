"""Turns targets of a profile into problems: the reference's code is a part of the model.

A problem has one code. Places of a target with different code, for example with another size in a call,
become separate problems. Places that differ only in the shapes of their tensors become cases of one problem,
weighted by their time. This includes the places at all input shapes of the model; a reshape to a size that
differs between input shapes infers that size.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from evaluators.base.atomic_write import write_atomically
from search.optimize.extraction.fragments import Fragment, NoFragmentError, unified
from search.optimize.extraction.record import FOLDER, ExtractedProblem, Extraction, Place
from search.optimize.extraction.references import reference_of
from search.optimize.extraction.traced_model import TracedModel
from search.optimize.profiling.record import Profile, Target, TargetCase, amdahl
from search.optimize.profiling.recording import OperatorKind
from search.optimize.profiling.targets import common_site

LONGEST = 40
"""Maximum length of a problem's name, in characters."""
OPERATOR, PRODUCT, LIGHT = "operator", "chain with a matmul", "chain without"
DISJOINT_FROM: Mapping[str, Sequence[str]] = {
    OPERATOR: (OPERATOR, PRODUCT, LIGHT),
    PRODUCT: (PRODUCT,),
    LIGHT: (LIGHT,),
}
"""Kinds of problems; a new problem of a kind shares no call with earlier ones of the listed kinds."""
LEFT_OUT = ("view", "creation")
"""Kinds of operators for which no kernel is searched."""


Own = Sequence[tuple[Place, Fragment, TargetCase]]


def extract(
    profile: Profile,
    traced_models: Sequence[TracedModel],
    folder: Path,
    *,
    most: int,
    gain: float,
    known: Callable[[Fragment], bool] = lambda fragment: False,
) -> Extraction:
    """Writes the problems of the most promising targets into the run folder: at most `most` that are
    searched, plus those for which the library has a kernel (`known`). Each must be able to raise the
    end-to-end speedup to 1 + `gain`. Raises OSError.

    Problems that are searched share no calls, with two exceptions: a chain may share calls with the problem
    of a more promising operator, and a chain without a matmul with one that has one. The larger problem can
    gain more, the smaller one is easier; the placement decides between their kernels.
    """
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    extractor = _Extractor(profile, traced_models, folder, most=most, gain=gain, known=known)
    for target in profile.targets:
        if target.kind not in LEFT_OUT and profile.potential(target) >= 1 + gain:
            extractor.add(target)
    return Extraction(problems=tuple(extractor.problems), left_out=extractor.left_out)


class _Extractor:
    """The problems so far, and the calls of those that are searched, by kind."""

    def __init__(
        self,
        profile: Profile,
        traced_models: Sequence[TracedModel],
        folder: Path,
        *,
        most: int,
        gain: float,
        known: Callable[[Fragment], bool],
    ) -> None:
        self.problems: list[ExtractedProblem] = []
        self.left_out: dict[str, str] = {}
        self._profile, self._traced_models, self._folder = profile, traced_models, folder
        self._most, self._gain, self._known = most, gain, known
        self._taken: dict[str, set[tuple[int, int]]] = {kind: set() for kind in DISJOINT_FROM}

    def add(self, target: Target) -> None:
        """Adds the problems of a target, or the reason why it has none."""
        before = len(self.problems)
        by_code, reasons = self._by_code(target)
        for own in sorted(by_code, key=lambda each: -sum(place.time_ms for place, _, _ in each)):
            try:
                self._add(target, own)
            except NoFragmentError as error:
                reasons.append(str(error))
        if reasons and len(self.problems) == before:
            self.left_out[target.name] = "; ".join(dict.fromkeys(reasons))

    def _by_code(self, target: Target) -> tuple[list[Own], list[str]]:
        """The target's places grouped by their code, without overlaps, and why other places were rejected."""
        found: dict[tuple[str, ...], list[tuple[Place, Fragment, TargetCase]]] = defaultdict(list)
        reasons: list[str] = []
        used: set[tuple[int, int]] = set()
        for place, case in places_of(target, self._traced_models):
            if not used.isdisjoint(place.members):
                continue
            try:
                fragment = self._traced_models[place.shape].fragment(place)
            except NoFragmentError as error:
                reasons.append(str(error))
                continue
            used.update(place.members)
            found[(*fragment.names, *fragment.code({}))].append((place, fragment, case))
        return _at_all_shapes(found.values()), reasons

    def _add(self, target: Target, own: Own) -> None:
        """Adds the problem of these places if it is promising enough. Raises NoFragmentError."""
        kind = self._kind(target, own[0][0])
        taken = set[tuple[int, int]]().union(*(self._taken[each] for each in DISJOINT_FROM[kind]))
        free = [each for each in own if taken.isdisjoint(each[0].members)]
        searched = bool(free) and sum(each.searched for each in self.problems) < self._most
        if not self._known(own[0][1]):
            if not searched:
                return
            own = free
        floors = [case.floor_ms / case.calls for _, _, case in own]
        floor_ms = sum(floors) if all(floors) else 0.0
        time_ms = sum(place.time_ms for place, _, _ in own)
        factor = max(1.0, time_ms / floor_ms if floor_ms else 1.0, target.library_factor)
        if amdahl(time_ms / self._profile.total_ms, factor) < 1 + self._gain:
            return
        source, exact = reference_of(target, [each[:2] for each in own], self._traced_models)
        extracted = ExtractedProblem(
            name=f"{len(self.problems) + 1}_{slug(target)}",
            target=target.name,
            places=tuple(place for place, _, _ in own),
            floor_ms=floor_ms,
            exact=exact,
            searched=searched,
        )
        write_atomically(self._folder / extracted.file, source)
        self.problems.append(extracted)
        if searched:
            self._taken[kind].update(call for place, _, _ in own for call in place.members)

    def _kind(self, target: Target, place: Place) -> str:
        """One of DISJOINT_FROM."""
        calls = self._traced_models[place.shape].run.calls
        if not target.is_chain:
            return OPERATOR
        return PRODUCT if any(calls[each].kind is OperatorKind.CONTRACTION for each in place.calls) else LIGHT


def _at_all_shapes(groups: Iterable[Own]) -> list[Own]:
    """Merges groups of places that are the same at different input shapes: in the same modules, with the same
    code up to an inferred size."""
    found: list[Own] = []
    for own in groups:
        for number, other in enumerate(found):
            if (both := _together(other, own)) is not None:
                found[number] = both
                break
        else:
            found.append(own)
    return found


def _together(one: Own, other: Own) -> Own | None:
    """The two groups merged; None where they are different problems."""
    if not _shapes(one).isdisjoint(_shapes(other)) or _sites(one) != _sites(other):
        return None
    both = [*one, *other]
    fragments = unified([fragment for _, fragment, _ in both])
    if fragments is None:
        return None
    return [(place, each, case) for (place, _, case), each in zip(both, fragments, strict=True)]


def _shapes(own: Own) -> set[int]:
    return {place.shape for place, _, _ in own}


def _sites(own: Own) -> set[str]:
    return {place.site for place, _, _ in own}


def places_of(target: Target, traced_models: Sequence[TracedModel]) -> list[tuple[Place, TargetCase]]:
    """The places of the target's calls in the runs, each with its case, whose time they share evenly."""
    cases = {(case.shape, case.arguments): case for case in target.cases}
    found = []
    for shape, traced in enumerate(traced_models):
        run = traced.run.calls
        singles = [(place,) for place in range(len(run))]
        for group in [chain.places for chain in traced.chains] if target.is_chain else singles:
            calls = [run[place] for place in group]
            if tuple(call.operator for call in calls) == target.operators:
                case = cases[shape, tuple(call.arguments for call in calls)]
                site = common_site([call.site for call in calls])
                time_ms = case.time_ms / case.calls
                found.append((Place(calls=group, site=site, time_ms=time_ms, shape=shape), case))
    return found


def slug(target: Target) -> str:
    """The target's name as a file name."""
    names = [each.split(".")[1].strip("_") for each in target.operators]
    return re.sub(r"\W", "_", "_".join(names))[:LONGEST].rstrip("_")
