"""`profile.html` of a run: time by operator and module, what could be gained, and what was gained."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluators.base.atomic_write import write_atomically
from evaluators.base.cause import first_line
from search.optimize.outcome import outcome_of
from search.optimize.profiling.record import Profile, SiteTime, Target, site_patterns
from search.optimize.profiling.table import advice
from search.report.html import plain, render_page

SCRIPTS = ("elements.js", "plots.js", "profile.js")
MOST_TARGETS = 200
"""Maximum rows of the ranking."""


class BadProfile(ValueError):
    """The file contains no profile, or one of another version."""


def has_profile(folder: Path) -> bool:
    """Whether the folder contains a profile."""
    return (folder / "profile.json").exists()


def read_profile(folder: Path) -> Profile:
    """The profile in a folder. Raises OSError and BadProfile."""
    path = folder / "profile.json"
    try:
        return Profile.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadProfile(f"profile.json cannot be read: {first_line(error)}") from error


def write_page(folder: Path, out: Path | None = None) -> Path:
    """Writes the page of the folder's profile to `out` (default: `profile.html` in the folder) and returns
    the file. Raises OSError and BadProfile."""
    place, profile = out or folder / "profile.html", read_profile(folder)
    page = render_page(
        "profile.html.j2",
        SCRIPTS,
        name=folder.resolve().name,
        title=f"Where the time of {profile.model} goes",
        data={**page_data(profile), "outcome": plain(_outcome(folder, profile))},
    )
    write_atomically(place, page)
    return place


def _outcome(folder: Path, profile: Profile) -> dict[str, Any] | None:
    try:
        return outcome_of(folder, profile)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadProfile(f"the files of the run cannot be read: {first_line(error)}") from error


def page_data(profile: Profile) -> dict[str, Any]:
    """The page's content as plain JSON types."""
    facts = ("model", "device", "device_name", "dtype", "backward", "torch", "iterations", "notes")
    times = ("wall_ms", "device_ms", "total_ms", "other_ms", "kernels", "idle_share", "launch_bound")
    shown: dict[str, Any] = plain(
        {
            **{key: getattr(profile, key) for key in (*facts, *times, "graphs_speedup")},
            "advice": list(advice(profile)),
            "shapes": [asdict(each) for each in profile.shapes],
            "operators": [
                {"name": each.name, "time_ms": each.time_ms, "calls": each.calls, "kind": each.kind}
                for each in profile.operators
            ],
            "modules": modules(profile),
            "targets": [_target(profile, each) for each in profile.targets[:MOST_TARGETS]],
            "others": max(0, len(profile.targets) - MOST_TARGETS),
        }
    )
    return shown


def modules(profile: Profile) -> list[dict[str, Any]]:
    """The tree of modules and the operators they call, parents first: `id`, the `parent`'s id ("" for the
    root), `name`, `time_ms` and `calls` including all nodes below, and whether it is an `operator`."""
    time_ms: dict[tuple[str, ...], float] = defaultdict(float)
    calls: dict[tuple[str, ...], int] = defaultdict(int)
    for operator in profile.operators:
        for site, each in operator.sites.items():
            path = ("", *(site.split(".") if site else ()), f"{operator.name}()")
            for end in range(1, len(path) + 1):
                time_ms[path[:end]] += each.time_ms
                calls[path[:end]] += each.calls
    return [
        {
            "id": "/".join(path) or "model",
            "parent": ("/".join(path[:-1]) or "model") if len(path) > 1 else "",
            "name": path[-1] or profile.model,
            "time_ms": time_ms[path],
            "calls": calls[path],
            "operator": path[-1].endswith("()"),
        }
        for path in sorted(time_ms, key=_by_number)
        if time_ms[path] > 0
    ]


def _by_number(path: tuple[str, ...]) -> list[tuple[int, str]]:
    """Sort key that puts module 2 before module 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in path]


def _target(profile: Profile, target: Target) -> dict[str, Any]:
    library = target.library
    return {
        **{key: getattr(target, key) for key in ("name", "kind", "calls", "time_ms", "roofline_factor")},
        "bound": target.bound.value,
        "share": profile.share(target),
        "library": library and [library.entry, library.speedup, library.measured_at],
        "speedup": profile.potential(target),
        "speedup_by_library": profile.speedup_if(target, target.library_factor) if library else None,
        "sites": _patterns(target.sites),
        "cases": [[list(each.arguments), each.calls, each.time_ms, each.shape] for each in target.cases],
    }


def _patterns(sites: dict[str, SiteTime]) -> list[str]:
    return [f"{name} ×{count}" if count > 1 else name for name, count in site_patterns(list(sites)).items()]
