"""The moves for reductions, normalisations and chains of both in C++."""

from __future__ import annotations

from search.proposers.playbook.move import Knobs, Move
from search.proposers.playbook.templates.cpp import pieces, vector_functions
from search.proposers.playbook.templates.operator_moves import MERGE, OPTIMISER, REMEMBER, has_joint_passes
from search.proposers.playbook.workload import Workload
from search.records.tree import Category


def _writes_elements(workload: Workload, knobs: Knobs) -> bool:
    return workload.rows is not None and not workload.rows.kept


def _reuses_a_step(workload: Workload, knobs: Knobs) -> bool:
    return workload.rows is not None and bool(workload.rows.reused)


LANES = (4, 8, 16, 32, 64)
MOVES = (
    REMEMBER,
    MERGE,
    OPTIMISER,
    vector_functions.MOVE,
    Move(
        name="lanes",
        text="Gather in several independent lanes along the innermost dimension and combine them at the "
        "end: an addition need not wait for the one before, and the lanes of contiguous elements become "
        "vectors.",
        category=Category.LATENCY,
        gain=2.5,
        needs={"lanes": (1,)},
        varies={"lanes": (32, 16, 64, 8)},
    ),
    Move(
        name="more lanes",
        text="Change the number of lanes: more hide the latency of additions, fewer are combined sooner, "
        "which matters for short rows.",
        category=Category.LATENCY,
        gain=1.05,
        needs={"lanes": LANES},
        varies={"lanes": LANES},
    ),
    Move(
        name="single sums",
        text="Compute elements in float32 where they have no more digits: twice as many fit into a "
        "vector. The sums of blocks are still added in double precision.",
        category=Category.PRECISION,
        gain=1.5,
        needs={"lanes": LANES, "sums": ("double",)},
        sets={"sums": "float"},
    ),
    Move(
        name="joint passes",
        text="Run a pass together with the one whose result it is about, block by block, while the block "
        "is in the first-level cache, and correct the value gathered so far when that result changes: one "
        "read of a long row less.",
        category=Category.MEMORY,
        gain=1.1,
        applies=has_joint_passes,
        sets={"joint": True, "scratch": False},
        varies={"block": (2048, 4096, 1024)},
    ),
    Move(
        name="scratch row",
        text="Keep what a pass computes for each element in a scratch row in cache, and write the result "
        "from it: nothing is computed twice.",
        category=Category.COMPUTE,
        gain=1.2,
        applies=_reuses_a_step,
        sets={"scratch": True, "joint": False, "split": "rows"},
    ),
    Move(
        name="block length",
        text="Change the length of a block: it must fit the first-level cache, and the lanes of longer "
        "blocks are combined less often.",
        category=Category.MEMORY,
        gain=1.03,
        varies={"block": (2048, 4096, 1024, 8192)},
    ),
    Move(
        name="streaming stores",
        text="Write whole cache lines past the caches: they are not read before they are overwritten and "
        "do not push the row out of the cache.",
        category=Category.MEMORY,
        gain=1.2,
        needs={"stores": ("cached",), "lanes": LANES, "flags": (pieces.FAST,)},
        applies=_writes_elements,
        sets={"stores": "streaming"},
    ),
    Move(
        name="huge pages",
        text="Ask for huge pages for a large output before it is first written: its thousands of page "
        "faults, one for each 4 KiB, become a handful of 2 MiB.",
        category=Category.LATENCY,
        gain=1.5,
        needs={"pages": ("small",)},
        applies=_writes_elements,
        sets={"pages": "huge"},
    ),
    Move(
        name="threads",
        text="Spread the rows of large tensors over all cores, and compute small tensors on one.",
        category=Category.PARALLELISM,
        gain=1.1,
        sets={"threads": True, "split": "rows"},
        varies={"grain": (32768, 8192, 131072)},
    ),
    Move(
        name="threads within rows",
        text="Let all cores work on one row at a time, each on a part of it: few long rows then occupy "
        "every core, and a row's weights stay in the shared cache.",
        category=Category.PARALLELISM,
        gain=1.02,
        sets={"threads": True, "split": "parts", "scratch": False},
    ),
)
NAIVE: Knobs = {
    "lanes": 1,
    "block": 4096,
    "sums": "double",
    "joint": False,
    "scratch": False,
    "stores": "cached",
    "pages": "small",
    "flags": "-O2",
    "functions": "library",
    "merged": False,
    "remembered": False,
    "threads": False,
    "split": "rows",
    "grain": 32768,
}
