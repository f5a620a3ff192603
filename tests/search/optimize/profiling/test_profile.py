"""The profile record: Amdahl's law by hand, the order of targets, and JSON round trips."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from search.optimize.profiling.record import (
    Bound,
    LibraryKernel,
    Profile,
    SiteTime,
    Target,
    TargetCase,
    amdahl,
    site_patterns,
)
from search.optimize.profiling.table import advice, site_summary


def case(time_ms: float, floor_ms: float, *, calls: int = 1, site: str = "h.0", **fields: Any) -> TargetCase:
    made: dict[str, Any] = {
        "arguments": ("((T([4], f32),), {})",),
        "bytes": 32,
        "operations": 0,
        "dtype": "float32",
        "bound": Bound.MEMORY,
        "sites": {site: SiteTime(calls=calls, time_ms=time_ms)},
    }
    return TargetCase(calls=calls, time_ms=time_ms, floor_ms=floor_ms, **{**made, **fields})


def target(name: str, *cases: TargetCase, kind: str = "light", **fields: Any) -> Target:
    operators = tuple(f"aten.{each}.default" for each in name.split(" + "))
    return Target(operators=operators, kind=kind, cases=cases, **fields)


def profile(*operators: Target, chains: tuple[Target, ...] = (), **fields: Any) -> Profile:
    made: dict[str, Any] = {"model": "tiny", "device": "cuda", "device_name": "a GPU", "dtype": "float16"}
    made |= {"backward": False, "torch": "2", "iterations": 10, "wall_ms": 10.0, "kernels": 3}
    return Profile(operators=operators, chains=chains, **{**made, **fields})


MATMUL = target("mm", case(5.0, 4.0), case(1.0, 1.0, site="h.1"), kind="contraction")
SOFTMAX = target(
    "_softmax", case(3.0, 0.5), library=LibraryKernel(entry="softmax/x", speedup=2.0, measured_at="")
)
VIEW = target("view", case(0.5, 0.01), kind="view")
CHAIN = target("mm + _softmax", case(9.0, 4.5), kind="chain")


@pytest.mark.parametrize(
    ("share", "factor", "speedup"),
    [(0.5, 2, 4 / 3), (0.8, 4, 2.5), (0.3, math.inf, 1 / 0.7), (0.9, 1, 1), (0, 9, 1), (1, 3, 3)],
)
def test_amdahl(share: float, factor: float, speedup: float) -> None:
    assert amdahl(share, factor) == pytest.approx(speedup)


def test_amdahl_is_infinite_where_nothing_is_left() -> None:
    assert amdahl(1, math.inf) == math.inf


def test_the_most_promising_comes_first() -> None:
    made = profile(MATMUL, SOFTMAX, VIEW, chains=(CHAIN,))
    assert [each.name for each in made.targets] == ["mm + _softmax", "_softmax", "mm"]
    # 90 % of the time twice as fast; 30 % six times; 60 % in 5 of 6 ms.
    speedups = [made.potential(each) for each in made.targets]
    assert speedups == pytest.approx([1 / (0.1 + 0.45), 1 / (0.7 + 0.05), 1 / (0.4 + 0.5)])
    assert made.speedup_if(SOFTMAX, SOFTMAX.library_factor) == pytest.approx(1 / (0.7 + 0.15))
    assert made.share(MATMUL) == pytest.approx(0.6)


def test_the_library_counts_where_it_knows_better_than_the_roofline() -> None:
    library = LibraryKernel(entry="x", speedup=3.0, measured_at="")
    known = target("exp", case(5.0, 5.0), library=library)
    assert profile(known).potential(known) == pytest.approx(1 / (0.5 + 0.5 / 3))


def test_a_high_or_unknown_floor_promises_no_speedup() -> None:
    assert target("exp", case(1.0, 2.0)).roofline_factor == 1
    assert target("exp", case(4.0, 1.0), case(1.0, 0.0)).roofline_factor == 1


def test_a_target_is_bound_by_the_largest_part_of_its_floor() -> None:
    mixed = target("exp", case(9.0, 1.0), case(2.0, 2.0, bound=Bound.LAUNCH))
    assert mixed.bound is Bound.LAUNCH
    assert target("exp", case(9.0, 0.0)).bound is Bound.UNKNOWN


def test_idle_time_makes_a_model_launch_bound_only_on_a_gpu() -> None:
    waits = profile(target("exp", case(4.0, 1.0)), other_ms=1.0)
    assert waits.idle_share == pytest.approx(0.5)
    assert waits.launch_bound and waits.graphs_speedup == pytest.approx(2)
    [line] = advice(waits)
    assert "idle 50%" in line and "CUDA graphs" in line and "2.00x" in line
    busy = profile(target("exp", case(9.0, 1.0)))
    assert not busy.launch_bound and not list(advice(busy))
    on_cpu = profile(target("exp", case(4.0, 1.0)), device="cpu")
    assert not on_cpu.launch_bound
    assert "outside operators" in next(advice(on_cpu))


def test_shares_refer_to_the_longer_of_wall_and_device_time() -> None:
    slowed = profile(target("exp", case(15.0, 1.0)), target("sum", case(5.0, 1.0)))
    assert slowed.idle_share == 0
    assert [slowed.share(each) for each in slowed.operators] == pytest.approx([0.75, 0.25])


def test_a_profile_is_written_and_read_back() -> None:
    made = profile(MATMUL, SOFTMAX, VIEW, chains=(CHAIN,), notes=("rough",), other_ms=0.25)
    text = json.dumps(made.to_json())
    assert Profile.from_json(json.loads(text)) == made
    [first, *_] = json.loads(text)["follows"]["ranking"]
    assert (first["name"], first["kind"], first["calls"]) == ("mm + _softmax", "chain", 1)
    with pytest.raises(ValueError, match="version 2"):
        Profile.from_json({**json.loads(text), "version": 2})


@pytest.mark.parametrize("wall_ms", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_are_refused(wall_ms: float) -> None:
    with pytest.raises(ValueError, match="wall_ms"):
        profile(MATMUL, wall_ms=wall_ms)


def test_sites_that_differ_in_numbers_are_one_pattern() -> None:
    assert site_patterns(["h.0.attn", "h.11.attn", "lm_head", ""]) == {
        "h.*.attn": 2,
        "lm_head": 1,
        "(model)": 1,
    }
    sites = {site: SiteTime(calls=1, time_ms=1.0) for site in ("h.0", "h.1", "a", "b", "c")}
    assert site_summary(sites) == "h.* x2, a and 2 more"
