"""Theoretical occupancy: how many warps of a kernel fit a multiprocessor, and what limits their number.

The limits are those of the table "Technical Specifications per Compute Capability" in NVIDIA's CUDA
programming guide.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
REGISTERS, REGISTER_UNIT = 65536, 256
"""Registers of a multiprocessor, and the number in which a warp gets them."""
WARP_UNIT = 4
"""Warps get registers in groups of the multiprocessor's four schedulers."""
SHARED_UNIT, RESERVED_SHARED = 128, 1024
"""Bytes in which a block gets shared memory, and bytes of each block that the system keeps (8.0 and
later)."""
LIMITS = {
    "7.0": (64, 32, 96),
    "7.5": (32, 16, 64),
    "8.0": (64, 32, 164),
    "8.6": (48, 16, 100),
    "8.7": (48, 16, 164),
    "8.9": (48, 24, 100),
    "9.0": (64, 32, 228),
    "10.0": (64, 32, 228),
    "12.0": (48, 24, 100),
}
"""Warps, blocks and KiB of shared memory of a multiprocessor, by compute capability."""


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """Blocks that fit a multiprocessor at once, the share of its warps that they are, and the resource that
    limits them: `registers`, `shared memory`, `warps` or `blocks`."""

    blocks: int
    share: float
    limit: str


def occupancy(capability: str, *, registers: int, shared_bytes: int, threads: int) -> Occupancy | None:
    """The occupancy of a kernel; None for an unknown compute capability, or if no block fits.

    Args:
        capability: such as `9.0`.
        registers: of a thread.
        shared_bytes: of a block, static and dynamic.
        threads: of a block.
    """
    if capability not in LIMITS or threads < 1:
        return None
    most_warps, most_blocks, shared_kib = LIMITS[capability]
    warps = -(-threads // WARP)
    reserved = RESERVED_SHARED if float(capability) >= 8 else 0
    shared = _up(shared_bytes + reserved, SHARED_UNIT)
    fits = {
        "warps": most_warps // warps,
        "blocks": most_blocks,
        "registers": warps_of(registers) // warps if registers else most_blocks,
        "shared memory": shared_kib * 1024 // shared if shared else most_blocks,
    }
    limit = min(fits, key=lambda name: fits[name])
    if fits[limit] < 1:
        return None
    return Occupancy(blocks=fits[limit], share=fits[limit] * warps / most_warps, limit=limit)


def warps_of(registers: int) -> int:
    """The most warps of a multiprocessor whose threads use this many registers each."""
    return REGISTERS // _up(registers * WARP, REGISTER_UNIT) // WARP_UNIT * WARP_UNIT


def register_share(capability: str, registers: int) -> float:
    """The highest occupancy that this many registers allow, whatever the size of a block; 1 if unknown."""
    if capability not in LIMITS or not registers:
        return 1.0
    return min(1.0, warps_of(registers) / LIMITS[capability][0])


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
