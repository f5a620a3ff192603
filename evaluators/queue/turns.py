"""Which search is served next: fair queueing by expected device time. Pure but for its own account."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evaluators.queue.requests import DeviceRequest, Operation


class Turns:
    """Serves the search that has been given the least device time. A search that had nothing to do meanwhile
    does not catch up: it starts from the account of the search that was served last (start-time fair
    queueing, Goyal, Vin and Cheng 1996)."""

    def __init__(self) -> None:
        self._given_s: dict[str, float] = {}
        self._now_s = 0.0

    def next(self, searches: Iterable[str]) -> str:
        """The search to serve, of those that wait; there must be one."""
        return min(searches, key=lambda each: (self._start(each), each))

    def charge(self, search: str, cost_s: float) -> None:
        """Records that a search was served."""
        self._now_s = self._start(search)
        self._given_s[search] = self._now_s + cost_s

    def _start(self, search: str) -> float:
        return max(self._given_s.get(search, 0.0), self._now_s)


def in_turn(requests: Sequence[DeviceRequest]) -> list[DeviceRequest]:
    """All requests in a fair order: first the problems to open for searches that have no other request, then
    the rest, the searches in turn. A search that has others has begun, and learns of the device last. In its
    turn it gets all its requests on one problem: opening a problem costs more than a verdict."""
    turns = Turns()
    waiting: dict[str, list[DeviceRequest]] = {}
    for each in requests:
        waiting.setdefault(each.search, []).append(each)
    for line in waiting.values():
        line.sort(key=is_opening)
    ordered = [line.pop(0) for line in waiting.values() if is_opening(line[0])]
    while waiting := {search: line for search, line in waiting.items() if line}:
        search = turns.next(waiting)
        problem = waiting[search][0].problem.id
        chosen = [each for each in waiting[search] if each.problem.id == problem]
        waiting[search] = [each for each in waiting[search] if each.problem.id != problem]
        turns.charge(search, sum(each.cost_s for each in chosen))
        ordered += chosen
    return ordered


def is_opening(request: DeviceRequest) -> bool:
    """Whether it asks for the facts of the device, without which most searches cannot begin."""
    return request.operation is Operation.DESCRIBE
