"""The moves for reductions, normalisations and chains of both in Triton."""

from __future__ import annotations

from search.proposers.playbook.move import Knobs, Move
from search.proposers.playbook.templates.operator_moves import MERGE, NARROW, has_joint_passes
from search.proposers.playbook.workload import Workload
from search.records.tree import Category


def _reads_twice(workload: Workload, knobs: Knobs) -> bool:
    rows = workload.rows
    return rows is not None and (not rows.kept or len(rows.rounds(bool(knobs["joint"]))) > 1)


MOVES = (
    MERGE,
    NARROW,
    Move(
        name="whole rows",
        text="Hold a short row in registers: one read for all passes, and no loops.",
        category=Category.MEMORY,
        gain=1.4,
        sets={"whole": True, "fit": True},
    ),
    Move(
        name="fitting blocks",
        text="Make the block of a short row as small as the row: no lane computes masked elements.",
        category=Category.PARALLELISM,
        gain=1.1,
        sets={"fit": True},
    ),
    Move(
        name="several rows",
        text="Give each program several rows: short ones fill its lanes together, and neighbours share "
        "the cache lines where rows are not contiguous.",
        category=Category.PARALLELISM,
        gain=1.15,
        varies={"rows": (4, 2, 8, 16)},
    ),
    Move(
        name="rows to a warp",
        text="Give a program of one warp several short rows, about a thousand elements together: a row is "
        "combined within the warp, without a barrier.",
        category=Category.PARALLELISM,
        gain=1.3,
        sets={"whole": True, "fit": True, "warps": 1},
        varies={"rows": (4, 2, 1, 8)},
    ),
    Move(
        name="larger blocks",
        text="Load more of a row at once, several elements for each lane, so that enough loads are in "
        "flight to hide the latency of memory.",
        category=Category.LATENCY,
        gain=1.2,
        varies={"block": (1024, 512, 2048, 4096, 8192), "warps": (4, 8, 2, 1, 16)},
    ),
    Move(
        name="joint passes",
        text="Run a pass together with the one whose result it is about: each lane corrects the value "
        "that it has gathered when that result changes. A row that does not fit into registers is read "
        "once less.",
        category=Category.MEMORY,
        gain=1.25,
        applies=has_joint_passes,
        sets={"joint": True},
        varies={"block": (4096, 2048, 8192), "warps": (8, 16, 4)},
    ),
    Move(
        name="keep in registers",
        text="Keep the beginning of a long row in registers between the passes, as many elements as the "
        "register file of a multiprocessor has room for, and read only the rest again.",
        category=Category.MEMORY,
        gain=1.15,
        applies=_reads_twice,
        varies={"held": (32768, 16384, 8192), "warps": (16, 32), "block": (4096, 8192, 2048)},
    ),
    Move(
        name="backwards",
        text="Write the result from the end: what the pass before read last is still in the first-level "
        "or the L2 cache.",
        category=Category.MEMORY,
        gain=1.1,
        needs={"order": ("forwards",)},
        applies=_reads_twice,
        sets={"order": "backwards"},
    ),
    Move(
        name="eviction hints",
        text="Tell the caches what is read again: keep a row until its last read, drop it then, and let "
        "results stream past.",
        category=Category.MEMORY,
        gain=1.05,
        needs={"hints": (False,)},
        applies=_reads_twice,
        sets={"hints": True},
    ),
)
NAIVE: Knobs = {
    "block": 256,
    "rows": 1,
    "warps": 4,
    "fit": False,
    "whole": False,
    "joint": False,
    "held": 0,
    "order": "forwards",
    "hints": False,
    "merged": False,
    "narrow": False,
    "remembered": True,
}
