"""Prints a profile on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.table import Table

from search.optimize.profiling.record import Profile, SiteTime, Target, site_patterns

SITES = 2
"""Patterns of call sites to list per row."""
WORDS = ("target", "limit", "where")
"""Text columns; the others contain numbers."""
COLUMNS = ("target", "calls", "share", "ms", "roofline", "limit", "library", "model", "where")
NARROWEST = 12
"""Minimum width of the first and last column, in characters."""
IN_A_FILE = 160
"""Line width in characters where the output is not a terminal."""


def head(profile: Profile) -> Iterator[str]:
    """The lines above the ranking: the model, its time, advice and notes."""
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
    """What to try before any kernel, where the device is idle."""
    if profile.launch_bound:
        yield (
            f"launch-bound: the device is idle {profile.idle_share:.0%} of the time. Try CUDA graphs first "
            f'(torch.compile(model, mode="reduce-overhead")): up to {profile.graphs_speedup:.2f}x end to end'
        )
    elif profile.device == "cpu" and profile.idle_share > 0:
        yield f"{profile.idle_share:.0%} of the time is spent outside operators, in Python and call overhead"


def show_ranking(profile: Profile, most: int, console: Console) -> None:
    """Prints the most promising targets, with the end-to-end speedup that each makes possible."""
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
    """The lines below the ranking: what the columns mean."""
    left = len(profile.targets) - most
    if left > 0:
        yield f"… and {left} more in profile.json"
    yield (
        "roofline: possible speedup where memory, arithmetic or the shortest launch is the only limit; "
        "library: its kernel's speedup in earlier measurements; model: end-to-end speedup with the better of "
        "the two (Amdahl's law). Chains share calls with their operators"
    )
    if profile.backward:
        yield "targets are parts of the forward, each with the time of its forward and backward pass"


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
        site_summary(target.sites),
    )


def site_summary(sites: Mapping[str, SiteTime]) -> str:
    """The call sites in a few words, the one with most time first."""
    patterns = site_patterns(list(sites))
    shown = [f"{name} x{count}" if count > 1 else name for name, count in list(patterns.items())[:SITES]]
    left = len(patterns) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left > 0 else "")
