"""Decides which kernels go to which places, some of which share calls, so that they save most time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from search.optimize.extraction.record import ExtractedProblem, Place


def assign_places(
    saved_ms: Mapping[str, float], problems: Sequence[ExtractedProblem]
) -> dict[ExtractedProblem, tuple[Place, ...]]:
    """The places of each problem's kernel; no call gets two kernels. `saved_ms`: what each kernel saves per
    iteration, by problem, for problems with a kernel; it is split over a problem's places by their time."""
    found = _Placement(saved_ms, [each for each in problems if each.name in saved_ms]).best()
    places = {each: tuple(place for place in each.places if (each.name, place) in found) for each in problems}
    return {each: own for each, own in places.items() if own}


Option = tuple[str, Place]
"""A problem's name and one of its places."""


class _Placement:
    """What a kernel saves at each place, and which places share calls."""

    def __init__(self, saved_ms: Mapping[str, float], problems: Sequence[ExtractedProblem]) -> None:
        self._worth: dict[Option, float] = {
            (each.name, place): saved_ms[each.name] * place.time_ms / (each.time_ms or 1.0)
            for each in problems
            for place in each.places
        }
        by_call: dict[tuple[int, int], set[Option]] = {}
        for option in self._worth:
            for call in option[1].members:
                by_call.setdefault(call, set()).add(option)
        self._clash: dict[Option, set[Option]] = {
            option: set[Option]().union(*(by_call[call] for call in option[1].members)) - {option}
            for option in self._worth
        }

    def best(self) -> set[Option]:
        """Starts with the greedy choice, then swaps one place for several conflicting ones, or several for
        one, as long as that saves more time."""
        chosen = self._filled(set(), self._worth)
        improved = True
        while improved:
            improved = False
            for option in self._worth:
                other = self._exchanged(option, chosen)
                if self._saved(other - chosen) > self._saved(chosen - other) * (1 + 1e-9):
                    chosen, improved = other, True
        return chosen

    def _exchanged(self, option: Option, chosen: set[Option]) -> set[Option]:
        """Removes the option if it is chosen, otherwise adds it; then fills up with the options that fit."""
        if option in chosen:
            return self._filled(chosen - {option}, self._clash[option])
        out = self._clash[option] & chosen
        return self._filled(
            chosen - out | {option}, set[Option]().union(*(self._clash[each] for each in out))
        )

    def _filled(self, chosen: set[Option], options: Iterable[Option]) -> set[Option]:
        """Adds the options that conflict with nothing chosen, those that save most first."""
        found = set(chosen)
        for option in sorted(options, key=lambda each: (-self._worth[each], each[0], each[1].calls)):
            if found.isdisjoint(self._clash[option]):
                found.add(option)
        return found

    def _saved(self, some: set[Option]) -> float:
        return sum(self._worth[each] for each in some)
