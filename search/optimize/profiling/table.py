"""A profile on the terminal: where the time goes, and what is worth doing about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.table import Table

from search.optimize.profiling.record import Profile, SiteTime, Target, patterns_of

SITES = 2
"""Patterns of call sites that a row names."""
WORDS = ("target", "limit", "where")
"""Columns of words; the others have numbers."""
COLUMNS = ("target", "calls", "share", "ms", "roofline", "limit", "library", "model", "where")
NARROWEST = 12
"""Characters of a target, and of where it is, at least."""
IN_A_FILE = 160
"""Characters of a line where the output is no terminal."""


def head(profile: Profile) -> Iterator[str]:
    """The whole, in lines."""
    what = "forward and backward" if profile.backward else "forward"
    yield f"{profile.model}: {what}, {profile.dtype}, on {profile.device_name}, torch {profile.torch}"
    launches = f" in {profile.kernels} launches" if profile.kernels else ""
    device = "operators" if profile.device == "cpu" else "the device"
    mean = " on average" if len(profile.shapes) > 1 else ""
    yield f"an iteration takes{mean} {profile.wall_ms:.3g} ms, {device} {profile.device_ms:.3g} ms{launches}"
    if len(profile.shapes) > 1:
        yield from (
            f"  {each.wall_ms:.3g} ms at {each.name}, {each.weight:.0%} of the calls"
            for each in profile.shapes
        )
    yield from advice(profile)
    yield from (f"note: {each}" for each in profile.notes)


def advice(profile: Profile) -> Iterator[str]:
    """What to try before any kernel: where the device has nothing to do."""
    if profile.launch_bound:
        yield (
            f"launch-bound: the device is idle {profile.idle_share:.0%} of the time. Try CUDA graphs first "
            f'(torch.compile(model, mode="reduce-overhead")): {profile.graphs_speedup:.2f}x without the gaps'
        )
    elif profile.device == "cpu" and profile.idle_share > 0:
        yield f"{profile.idle_share:.0%} of the time is spent outside operators: Python, and calling them"


def show_ranking(profile: Profile, most: int, console: Console) -> None:
    """Prints the most promising targets: what the model gains when one of them is as fast as it can be."""
    if not console.is_terminal:
        console = Console(file=console.file, width=IN_A_FILE)
    rows = [_cells(profile, target) for target in profile.targets[:most]]
    taken = sum(max(map(len, column)) + 2 for column in list(zip(COLUMNS, *rows, strict=True))[1:-1])
    widest = max(NARROWEST, (console.width - taken - 2) // 2)
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        long = widest if name in (COLUMNS[0], COLUMNS[-1]) else None
        table.add_column(name, justify="left" if name in WORDS else "right", no_wrap=True, max_width=long)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def legend(profile: Profile, most: int) -> Iterator[str]:
    """What the columns mean."""
    left = len(profile.targets) - most
    if left > 0:
        yield f"… and {left} more in profile.json"
    yield (
        "roofline: times as fast as now where memory, arithmetic or the quickest launch are the limit; "
        "library: what its kernel was worth elsewhere; model: the whole model's speedup by the better one "
        "(Amdahl). Chains share calls with their operators"
    )


def _cells(profile: Profile, target: Target) -> tuple[str, ...]:
    return (
        target.name,
        str(target.calls),
        f"{profile.share(target):.1%}",
        f"{target.time_ms:.3g}",
        f"{target.roofline_factor:.2f}x",
        target.bound.value,
        f"{target.library_factor:.2f}x" if target.library else "",
        f"{profile.potential(target):.2f}x",
        places(target.sites),
    )


def places(sites: Mapping[str, SiteTime]) -> str:
    """The call sites in few words, those that take most first."""
    patterns = patterns_of(list(sites))
    shown = [f"{name} x{count}" if count > 1 else name for name, count in list(patterns.items())[:SITES]]
    left = len(patterns) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left > 0 else "")
