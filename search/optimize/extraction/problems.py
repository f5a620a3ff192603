"""Targets of a profile as problems: a reference for each, whose code is the model's own between two places.

A problem has one code. The places of a target that differ in it, say by a size that a call names, are several
problems; places that differ in the shapes of their tensors alone are its cases, weighted by their time. The
places are those at all shapes of the model's inputs; what is reshaped to a size there that another shape does
not have is reshaped to the size that follows from the others.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from evaluators.base.atomic_write import write_atomically
from search.optimize.extraction.fragments import Fragment, NoFragmentError, unified
from search.optimize.extraction.record import FOLDER, Extracted, Extraction, Place
from search.optimize.extraction.references import reference_of
from search.optimize.extraction.whole import Whole
from search.optimize.profiling.record import Profile, Target, TargetCase, amdahl
from search.optimize.profiling.recording import OperatorKind
from search.optimize.profiling.targets import common_site

LONGEST = 40
"""Characters of a problem's name."""
OPERATOR, PRODUCT, LIGHT = "operator", "chain with a matmul", "chain without"
SHARES_NONE: Mapping[str, Sequence[str]] = {
    OPERATOR: (OPERATOR, PRODUCT, LIGHT),
    PRODUCT: (PRODUCT,),
    LIGHT: (LIGHT,),
}
"""Kinds of problems, and those with whose problems one of them has no call in common."""
LEFT_OUT = ("view", "creation")
"""Kinds of operators that no kernel is searched for."""


Own = Sequence[tuple[Place, Fragment, TargetCase]]


def extract(
    profile: Profile,
    wholes: Sequence[Whole],
    folder: Path,
    *,
    most: int,
    gain: float,
    known: Callable[[Fragment], bool] = lambda fragment: False,
) -> Extraction:
    """Writes the problems of the targets from which the model can gain most, none of which could not raise
    its speedup to 1 + `gain`: at most so many that are searched, and those that the library has something for
    (`known`). Of those that are searched no two share a call, except that a chain may have the calls of an
    operator's problem that is more promising, and one without a matmul those of one with: the larger one has
    more to win, the smaller one is easier. Which of two kernels is used at a place is seen when both are
    there. Raises OSError."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    extractor = _Extractor(profile, wholes, folder, most=most, gain=gain, known=known)
    for target in profile.targets:
        if target.kind not in LEFT_OUT and profile.potential(target) >= 1 + gain:
            extractor.add(target)
    return Extraction(problems=tuple(extractor.problems), left_out=extractor.left_out)


class _Extractor:
    """Problems so far, and the calls that those have that are searched, by their kind."""

    def __init__(
        self,
        profile: Profile,
        wholes: Sequence[Whole],
        folder: Path,
        *,
        most: int,
        gain: float,
        known: Callable[[Fragment], bool],
    ) -> None:
        self.problems: list[Extracted] = []
        self.left_out: dict[str, str] = {}
        self._profile, self._wholes, self._folder = profile, wholes, folder
        self._most, self._gain, self._known = most, gain, known
        self._taken: dict[str, set[tuple[int, int]]] = {kind: set() for kind in SHARES_NONE}

    def add(self, target: Target) -> None:
        """The problems of a target; where there are none it is kept why."""
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
        """The target's places by the code that they have, no call in two of them; and why others are none."""
        found: dict[tuple[str, ...], list[tuple[Place, Fragment, TargetCase]]] = defaultdict(list)
        reasons: list[str] = []
        used: set[tuple[int, int]] = set()
        for place, case in places_of(target, self._wholes):
            if not used.isdisjoint(place.members):
                continue
            try:
                fragment = self._wholes[place.shape].fragment(place)
            except NoFragmentError as error:
                reasons.append(str(error))
                continue
            used.update(place.members)
            found[(*fragment.names, *fragment.code({}))].append((place, fragment, case))
        return _at_all_shapes(found.values()), reasons

    def _add(self, target: Target, own: Own) -> None:
        """The problem of these places, unless it is not worth it. Raises NoFragmentError."""
        kind = self._kind(target, own[0][0])
        taken = set[tuple[int, int]]().union(*(self._taken[each] for each in SHARES_NONE[kind]))
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
        source, exact = reference_of(target, [each[:2] for each in own], self._wholes)
        extracted = Extracted(
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
        """One of SHARES_NONE."""
        calls = self._wholes[place.shape].run.calls
        if not target.is_chain:
            return OPERATOR
        return PRODUCT if any(calls[each].kind is OperatorKind.CONTRACTION for each in place.calls) else LIGHT


def _at_all_shapes(groups: Iterable[Own]) -> list[Own]:
    """The groups of places with one code, those together that are the same at different shapes: in the same
    modules, with one code but for a size that follows from others."""
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
    """None where they are two problems."""
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


def places_of(target: Target, wholes: Sequence[Whole]) -> list[tuple[Place, TargetCase]]:
    """Where the target's calls are in the runs, each with its case; they share the case's time evenly."""
    cases = {(case.shape, case.arguments): case for case in target.cases}
    found = []
    for shape, whole in enumerate(wholes):
        run = whole.run.calls
        singles = [(place,) for place in range(len(run))]
        for group in [chain.places for chain in whole.chains] if target.is_chain else singles:
            calls = [run[place] for place in group]
            if tuple(call.operator for call in calls) == target.operators:
                case = cases[shape, tuple(call.arguments for call in calls)]
                site = common_site([call.site for call in calls])
                time_ms = case.time_ms / case.calls
                found.append((Place(calls=group, site=site, time_ms=time_ms, shape=shape), case))
    return found


def slug(target: Target) -> str:
    """The target's name as one of a file."""
    names = [each.split(".")[1].strip("_") for each in target.operators]
    return re.sub(r"\W", "_", "_".join(names))[:LONGEST].rstrip("_")
