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
    text="Cache what depends only on the shapes and strides of a call's tensors: on small tensors this takes "
    "longer than the computation.",
    category=Category.LATENCY,
    gain=1.8,
    sets={"remembered": True},
)
MERGE = Move(
    name="merge dimensions",
    text="Merge neighbouring dimensions that all tensors cross in one stride: contiguous tensors of any "
    "shape then have one dimension, and no address needs a division.",
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
    text="Compute addresses in 32 bits if no tensor reaches further: a 64-bit division takes dozens of "
    "instructions.",
    category=Category.COMPUTE,
    gain=1.2,
    sets={"narrow": True},
)
