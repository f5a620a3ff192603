"""Compiler flags as moves, shared by the C++ templates."""

from __future__ import annotations

from search.proposers.playbook.move import Move
from search.proposers.playbook.templates.cpp import pieces
from search.records.tree import Category


def optimiser(algorithm: str, gain: float) -> Move:
    """For plain loops, which the compiler turns into vectors."""
    return Move(
        name="optimiser",
        text="Compile with -O3 -march=native, so that the compiler unrolls, vectorises and uses the widest"
        " registers and fused multiply-adds of this machine.",
        category=Category.COMPUTE,
        gain=gain,
        needs={"algorithm": (algorithm,), "flags": ("-O2",)},
        sets={"flags": pieces.FAST},
    )


def native_vectors(algorithms: tuple[str, ...], gain: float) -> Move:
    """For algorithms that are written with vectors."""
    return Move(
        name="native vectors",
        text="Compile with -O3 -march=native: the vectors become this machine's widest registers, with fused "
        "multiply-adds, and the sums stay in them.",
        category=Category.COMPUTE,
        gain=gain,
        needs={"algorithm": algorithms, "flags": ("-O2",)},
        sets={"flags": pieces.FAST},
    )
