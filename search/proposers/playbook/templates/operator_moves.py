"""Moves that the templates for operators share."""

from __future__ import annotations

from search.proposers.playbook.move import Knobs, Move
from search.proposers.playbook.templates.cpp import pieces
from search.proposers.playbook.workload import Workload
from search.records.tree import Category


def has_joint_passes(workload: Workload, knobs: Knobs) -> bool:
    """Whether a pass of the workload can run together with the one that it is about."""
    return workload.rows is not None and any(each.then for each in workload.rows.rounds(joint=True))


REMEMBER = Move(
    name="remember layouts",
    text="Keep what follows from the shapes and strides of a call's tensors for the next call with the same: "
    "on small tensors more time goes there than into the numbers.",
    category=Category.LATENCY,
    gain=1.8,
    sets={"remembered": True},
)
MERGE = Move(
    name="merge dimensions",
    text="Make neighbouring dimensions that all tensors cross in one stride a single one: contiguous tensors "
    "of any shape have one dimension then, and no place needs a division.",
    category=Category.COMPUTE,
    gain=1.3,
    sets={"merged": True},
)
OPTIMISER = Move(
    name="optimiser",
    text="Compile with -O3 -march=native, for the widest registers and fused multiply-adds of this machine.",
    category=Category.COMPUTE,
    gain=1.2,
    needs={"flags": ("-O2",)},
    sets={"flags": pieces.FAST},
)
NARROW = Move(
    name="32-bit places",
    text="Compute places in 32 bits where no tensor reaches further: a 64-bit division is dozens of "
    "instructions.",
    category=Category.COMPUTE,
    gain=1.2,
    sets={"narrow": True},
)
