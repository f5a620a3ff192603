"""What a run of `search.optimize` leaves for people: the README of `optimized/`, and the same in lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from search.optimize.extraction.record import Extracted, Extraction
from search.optimize.profiling.record import Profile, patterns_of
from search.optimize.searching import AcceptedKernel
from search.optimize.verification.apart import WAYS
from search.optimize.verification.record import Verification, growth_lines, in_lines

README = """# {model}, with kernels

{head}

```python
from optimized import load

model = load(model)  # the same model, with its weights
```

It needs torch, and Triton or a compiler where a kernel does. The kernels run in eval mode, under
`torch.no_grad()`, for arguments as in `manifest.json`. For everything else the model's own forward runs;
`type(model).plan.fallbacks` says why. `torch.compile(load(model))` runs those kernels that are faster than
the compiler's own code, where that was measured. `load(model, without=["…"])` leaves kernels out,
`unload(model)` all.

## End to end

{verified}

## Kernels

| kernel | operators | calls | where | share before | speedup alone | from |
|---|---|---|---|---|---|---|
{rows}

## Tried without a kernel that is surely faster

{others}
"""


def readme(
    profile: Profile,
    extraction: Extraction,
    kernels: Mapping[str, AcceptedKernel],
    verification: Verification,
) -> str:
    """The README's text."""
    problems = {each.name: each for each in extraction.problems}
    rows = [_row(problems[name], won, profile) for name, won in kernels.items()]
    others = [
        *(f"- {name}: {_what(each)}" for name, each in problems.items() if name not in kernels),
        *(f"- {name}: taken out again: {why}" for name, why in verification.left_out.items()),
        *(f"- {name}: {why}" for name, why in extraction.left_out.items()),
    ]
    lines = "\n".join([*in_lines(verification, WAYS), *growth_lines(verification)])
    return README.format(
        model=profile.model,
        head=f"{profile.dtype}, forward, on {profile.device_name}, torch {profile.torch}.{_shapes(profile)}",
        verified=f"```\n{lines}\n```",
        rows="\n".join(rows) or "| none | | | | | | |",
        others="\n".join(others) or "- nothing",
    )


def _shapes(profile: Profile) -> str:
    """Where there are several."""
    listed = [f"{each.name} ({each.weight:.0%} of the calls)" for each in profile.shapes]
    return f" Code for each of these inputs: {', '.join(listed)}." if len(listed) > 1 else ""


def _row(extracted: Extracted, won: AcceptedKernel, profile: Profile) -> str:
    where = ", ".join(patterns_of([place.site for place in extracted.places]))
    share = extracted.time_ms / profile.total_ms
    cells = (
        f"`kernels/{extracted.name}.py` ({won.kernel.language})",
        extracted.target,
        str(len(extracted.places)),
        where,
        f"{share:.1%}",
        f"{won.speedup:.2f}x [{won.low:.2f}, {won.high:.2f}]",
        won.origin,
    )
    return f"| {' | '.join(cells)} |"


def _what(extracted: Extracted) -> str:
    calls = len(extracted.places)
    return f"{extracted.target}, {calls} calls" if calls > 1 else f"{extracted.target}, one call"


def extracted_lines(extraction: Extraction, profile: Profile) -> Iterator[str]:
    """The problems, a line each."""
    for each in extraction.problems:
        ceiling = f", {each.ceiling:.2f}x at the roofline" if each.ceiling else ""
        exact = "bit for bit the model's" if each.exact else "the model's to rounding"
        share = each.time_ms / profile.total_ms
        asked = "" if each.searched else "; for the library alone"
        yield f"{each.name}: {_what(each)}, {share:.1%} of the time{ceiling}; its code is {exact}{asked}"
    for name, why in extraction.left_out.items():
        yield f"no problem: {name}: {why}"


def won_lines(kernels: Mapping[str, AcceptedKernel], problems: Sequence[Extracted]) -> Iterator[str]:
    """What was found for each problem, a line each."""
    for each in problems:
        found = kernels.get(each.name)
        said = "no kernel that is surely faster than eager"
        if found is not None:
            said = f"{found.speedup:.2f}x [{found.low:.2f}, {found.high:.2f}], {found.origin}"
        yield f"{each.name}: {said}"
