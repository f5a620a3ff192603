"""The static level of a C++ kernel: which loops the compiler vectorised, as GCC and Clang report it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evaluators.profiling.facts import ScalarLoop, StaticFacts

GCC_FLAGS = ("-fopt-info-vec-optimized", "-fopt-info-vec-missed")
CLANG_FLAGS = ("-Rpass=loop-vectorize", "-Rpass-missed=loop-vectorize", "-Rpass-analysis=loop-vectorize")
REMARK = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: (?P<kind>optimized|missed|remark|warning): +(?P<text>.*)$"
)
VECTORISED = ("loop vectorized", "vectorized loop")
NOT_VECTORISED = ("couldn't vectorize loop", "loop not vectorized")
REASON = "not vectorized: "
UNKNOWN = "the compiler gives no reason"
MOST_LOOPS = 12
INTRINSICS = re.compile(
    r"\b(?:_mm(?!_(?:malloc|free|pause|prefetch))\d*_|_tile_|v(?:ld|st)\d|sv(?:ld|st)\d|(?:__)?asm\b)"
)
"""Vector code written by hand. To the compiler its loops are not vectorised, and cannot be."""


def parse_report(text: str, file: str, source: Sequence[str] = ()) -> StaticFacts:
    """The loops of one source file in a compiler's output.

    Args:
        text: the output of a build with `GCC_FLAGS` or `CLANG_FLAGS`.
        file: the end of the source file's path; remarks on headers are left out.
        source: the file's lines. Of a file with intrinsics, no loop is reported as not vectorised.
    """
    vectorised: list[int] = []
    reasons: dict[int, str] = {}
    warnings: list[str] = []
    open_line: int | None = None
    for line in text.splitlines():
        match = REMARK.match(line)
        if match is None or not match["file"].endswith(file):
            continue
        number, remark = int(match["line"]), match["text"]
        if match["kind"] == "warning":
            warnings.append(f"line {number}: {remark}")
        elif any(words in remark for words in VECTORISED):
            vectorised.append(number)
            open_line = None
        elif any(words in remark for words in NOT_VECTORISED):
            before = reasons.get(number, "")
            reasons[number] = before or _reason(remark)
            open_line = number
        elif open_line is not None and REASON in remark:  # GCC names the reason after the loop
            reasons[open_line] = reasons[open_line] or remark.partition(REASON)[2].strip()
    by_hand = any(map(INTRINSICS.search, source))
    scalar = [
        ScalarLoop(line=number, reason=reason or UNKNOWN, source=_line(source, number))
        for number, reason in reasons.items()
        if number not in vectorised and not by_hand
    ]
    return StaticFacts(
        scalar_loops=tuple(scalar[:MOST_LOOPS]),
        vector_loops=tuple(dict.fromkeys(vectorised)),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _reason(remark: str) -> str:
    """Clang's reason, which stands in the remark itself."""
    found = remark.partition("loop not vectorized: ")[2]
    return re.sub(r"\s*\[-R[\w=-]+\]$", "", found)


def _line(source: Sequence[str], number: int) -> str:
    return source[number - 1].strip() if 0 < number <= len(source) else ""
