"""Checks on the launches of a call."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from evaluators.profiling import launches
from evaluators.profiling.code_checks import has_tensor_code
from evaluators.profiling.evidence import LOW_OCCUPANCY, SHORT_US, STATIC_SHARE, Check, CheckEvidence
from evaluators.profiling.facts import KernelLaunch, ProfileFacts

IDLE_MULTIPROCESSORS, MOST_WAVES = 0.2, 8.0
FEW_WARPS, FEW_WARPS_SHARE = 0.1, 0.7
NEAR_THE_FLOOR = 0.6
"""Share of the roofline from which the trace alone gives no advice."""
FAR_FROM_THE_FLOOR = 0.4


def traced(check: Callable[[KernelLaunch, ProfileFacts], CheckEvidence | None]) -> Check:
    """The check on the longest kernel of a trace, unless the call is near the roofline already."""

    def on_longest(facts: ProfileFacts) -> CheckEvidence | None:
        assert facts.trace is not None
        launch = launches.longest(facts.trace)
        if launch is None or launch.duration_ns < SHORT_US * 1e3 or _roofline_share(facts) >= NEAR_THE_FLOOR:
            return None
        evidence = check(launch, facts)
        if evidence is None:
            return None
        share = launches.share_of_time(facts.trace, launch.name)
        return CheckEvidence(text=evidence.text, share=evidence.share * share, kernel=launch.name)

    return on_longest


def _roofline_share(facts: ProfileFacts) -> float:
    """The part of the roofline that the call reaches; 0 if unknown."""
    assert facts.trace is not None
    call_ms = facts.call_ms or launches.busy_us(facts.trace) / 1e3
    return facts.task.floor_ms / call_ms if facts.task.floor_ms and call_ms else 0.0


def partial_wave(launch: KernelLaunch, facts: ProfileFacts) -> CheckEvidence | None:
    """A grid that cannot be dealt out evenly."""
    fits = launches.occupancy_of(launch, facts.capability)
    if fits is None or not facts.multiprocessors or launch.blocks <= facts.multiprocessors:
        return None
    waves = launch.blocks / (fits.blocks * facts.multiprocessors)
    idle = launches.idle_share_of_last_blocks(launch, facts.multiprocessors)
    if idle < IDLE_MULTIPROCESSORS or waves >= MOST_WAVES:
        return None
    text = (
        f"{launch.blocks} blocks on {facts.multiprocessors} multiprocessors with {fits.blocks} at a time are "
        f"{waves:.2f} waves: {idle:.0%} of the time is lost if all blocks take equally long"
    )
    return CheckEvidence(text=text, share=idle)


def few_warps(launch: KernelLaunch, facts: ProfileFacts) -> CheckEvidence | None:
    """A grid that fills a small part of the device for a long time."""
    fits = launches.occupancy_of(launch, facts.capability)
    if fits is None or not facts.multiprocessors:
        return None
    at_once = min(fits.blocks, launch.blocks / facts.multiprocessors)
    active = at_once / fits.blocks * fits.share
    if active >= FEW_WARPS:
        return None
    text = (
        f"{launch.blocks} blocks of {launch.threads} threads on {facts.multiprocessors} multiprocessors are "
        f"{active:.1%} of the possible warps, for {launch.duration_ns / 1e3:.4g} us"
    )
    return CheckEvidence(text=text, share=1 - active / FEW_WARPS * FEW_WARPS_SHARE)


def many_launches(facts: ProfileFacts) -> CheckEvidence | None:
    """Most of the work is in launches that are shorter than a launch costs."""
    trace = facts.trace
    assert trace is not None
    if not trace.launches:
        return None
    typical_us = statistics.median(each.duration_ns for each in trace.launches) / 1e3
    short_us = sum(each.duration_ns for each in trace.launches if each.duration_ns < SHORT_US * 1e3) / 1e3
    busy_us, gaps_us = launches.busy_us(trace), launches.gaps_us(trace)
    each_call = len(trace.launches) / trace.calls
    if short_us / trace.calls < busy_us / 2:
        return None
    text = f"{each_call:g} launches per call, half of them shorter than {typical_us:.2g} us"
    if each_call <= 1:
        text = f"the only launch of a call takes {typical_us:.2g} us, less than a launch costs"
    if gaps_us:
        text += f"; no kernel runs for {gaps_us:.4g} us between them, against {busy_us:.4g} us of work"
    overhead_us = max(gaps_us, each_call * (SHORT_US - typical_us))
    return CheckEvidence(text=text, share=overhead_us / (overhead_us + busy_us))


def register_limit(launch: KernelLaunch, facts: ProfileFacts) -> CheckEvidence | None:
    """Few warps fit because of their registers, in code without tensor cores."""
    fits = launches.occupancy_of(launch, facts.capability)
    if fits is None or fits.limit != "registers" or fits.share > LOW_OCCUPANCY or has_tensor_code(facts):
        return None
    text = (
        f"{launch.registers} registers per thread limit the occupancy to {fits.share:.1%} "
        f"({fits.blocks} block{'' if fits.blocks == 1 else 's'} of {launch.threads} threads)"
    )
    return CheckEvidence(text=text, share=STATIC_SHARE)


def far_from_the_floor(facts: ProfileFacts) -> CheckEvidence | None:
    """On a CPU, where nothing else is traced: a call takes much longer than the machine needs."""
    reached = _roofline_share(facts)
    if facts.capability or not 0 < reached < FAR_FROM_THE_FLOOR:
        return None
    text = (
        f"a call takes {facts.call_ms:.4g} ms, and this machine's least time for its bytes and products is "
        f"{facts.task.floor_ms:.4g} ms ({reached:.0%} of the roofline)"
    )
    return CheckEvidence(text=text, share=1 - reached)
