"""What the referee knows, as far as that can be seen without a process or a device."""

from __future__ import annotations

import pytest

from evaluators.court import Court
from evaluators.timing import Overhead


class Eager:
    """A baseline whose blocks cost so much besides now."""

    def __init__(self, total_ms: float) -> None:
        self._total_ms = total_ms

    def overhead(self, calls: int) -> Overhead:
        assert calls == 64
        return Overhead(total_ms=self._total_ms, delivery_ms=0.0)


@pytest.mark.parametrize(
    ("device", "now_ms", "overstated"),
    [
        ("cuda", 1.0, False),
        ("cuda", 0.9, False),
        ("cuda", 0.5, True),
        ("cuda", 2.0, False),
        ("cpu", 0.5, False),
    ],
)
def test_what_a_block_costs_besides_is_overstated_where_it_costs_less_now(
    device: str, now_ms: float, overstated: bool
) -> None:
    court = object.__new__(Court)
    court.device = device
    court._overheads = {64: Overhead(total_ms=1.0, delivery_ms=0.0)}
    court.eager = Eager(now_ms)  # type: ignore[assignment]
    assert court.overstates(64) is overstated
