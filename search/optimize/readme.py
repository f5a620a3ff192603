"""The README of `optimized/`, and the printed lines about problems and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from search.optimize.extraction.record import ExtractedProblem, Extraction
from search.optimize.installation.package import MODES
from search.optimize.profiling.record import Profile, site_patterns
from search.optimize.searching import AcceptedKernel
from search.optimize.verification.record import Verification, interval_text
from search.optimize.verification.summary import growth_lines, report_lines

README = """# {model}, with kernels

{head}

```python
from optimized import load

model = load(model)  # the same model, with its weights
```
{use}

This package needs torch, and Triton or a compiler for kernels that use one. The kernels run {mode}, for
arguments like those in `manifest.json`. For everything else the model's original forward runs;
`type(model).plan.fallbacks` counts these calls by reason. `torch.compile(load(model))` runs {compiled}.
`load(model, without=["…"])` switches kernels off, `unload(model)` restores the original forward.

## End-to-end speedup{timed}

{verified}

## Kernels

| kernel | operators | calls | call sites | share of the original time | speedup alone | origin |
|---|---|---|---|---|---|---|
{rows}

## No significantly faster kernel found

{others}
"""

USE = {
    False: "",
    True: """
```python
model.train()
optimizer = torch.optim.AdamW(model.parameters())
for batch in batches:
    optimizer.zero_grad()
    loss = model(**batch)["loss"]  # or your own function of the model's outputs
    loss.backward()
    optimizer.step()
```

The weights are the model's own: gradients are in their `.grad`, and `state_dict()` is unchanged.
{autocast}Second derivatives are not available.""",
}
COMPILED = {
    False: "only the kernels that were measured to be faster than the compiler's code",
    True: "the kernels only if that was measured to be faster than the compiler's code alone",
}
"""Texts by whether the kernels are for training."""


def readme(
    profile: Profile,
    extraction: Extraction,
    kernels: Mapping[str, AcceptedKernel],
    verification: Verification,
    autocast: str = "",
) -> str:
    """The README's text. `autocast`: the dtype of `torch.autocast` in the model's calls, "" for none."""
    problems = {each.name: each for each in extraction.problems}
    rows = [_row(problems[name], each, profile) for name, each in kernels.items()]
    others = [
        *(f"- {name}: {_what(each)}" for name, each in problems.items() if name not in kernels),
        *(f"- {name}: removed: {why}" for name, why in verification.left_out.items()),
        *(f"- {name}: {why}" for name, why in extraction.left_out.items()),
    ]
    lines = "\n".join([*report_lines(verification), *growth_lines(verification)])
    trains = profile.backward
    passes = "a step of training" if trains else "forward"
    casts = f"Call it under `torch.autocast` with {autocast}. " if autocast else ""
    return README.format(
        model=profile.model,
        head=f"{profile.dtype}, {passes}, on {profile.device_name}, torch {profile.torch}.{_shapes(profile)}",
        use=USE[trains].format(autocast=casts),
        mode=MODES[trains].replace("torch.no_grad()", "`torch.no_grad()`"),
        compiled=COMPILED[trains],
        timed=" of a step (forward, backward and the optimizer's step)" if trains else "",
        verified=f"```\n{lines}\n```",
        rows="\n".join(rows) or "| none | | | | | | |",
        others="\n".join(others) or "- nothing",
    )


def _shapes(profile: Profile) -> str:
    """The input shapes, if there are several."""
    listed = [f"{each.name} ({each.weight:.0%} of the calls)" for each in profile.shapes]
    return f" It has code for these input shapes: {', '.join(listed)}." if len(listed) > 1 else ""


def _row(extracted: ExtractedProblem, found: AcceptedKernel, profile: Profile) -> str:
    where = ", ".join(site_patterns([place.site for place in extracted.places]))
    share = extracted.time_ms / profile.total_ms
    cells = (
        f"`kernels/{extracted.name}.py` ({found.kernel.language})",
        extracted.target,
        str(len(extracted.places)),
        where,
        f"{share:.1%}",
        interval_text((found.speedup, found.low, found.high)),
        found.origin,
    )
    return f"| {' | '.join(cells)} |"


def _what(extracted: ExtractedProblem) -> str:
    calls = len(extracted.places)
    return f"{extracted.target}, {calls} calls" if calls > 1 else f"{extracted.target}, one call"


def problem_lines(extraction: Extraction, profile: Profile) -> Iterator[str]:
    """The extracted problems, one line each."""
    for each in extraction.problems:
        ceiling = f", {each.ceiling:.2f}x at the roofline" if each.ceiling else ""
        exact = "bit-identical" if each.exact else "equal up to rounding"
        share = each.time_ms / profile.total_ms
        only = "" if each.searched else "; library kernels only"
        yield f"{each.name}: {_what(each)}, {share:.1%} of the time{ceiling}; reference {exact}{only}"
    for name, why in extraction.left_out.items():
        yield f"not extracted: {name}: {why}"


def kernel_lines(
    kernels: Mapping[str, AcceptedKernel], problems: Sequence[ExtractedProblem]
) -> Iterator[str]:
    """The kernel found for each problem, one line each."""
    for each in problems:
        text = "no kernel significantly faster than eager"
        if found := kernels.get(each.name):
            text = f"{interval_text((found.speedup, found.low, found.high))}, {found.origin}"
        yield f"{each.name}: {text}"
