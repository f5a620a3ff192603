"""What the levels read from the output of their tools."""

from __future__ import annotations

import pytest

from evaluators.profiling.binaries import parse_sass, static_facts
from evaluators.profiling.facts import KernelLaunch, ScalarLoop
from evaluators.profiling.launches import gaps_us, idle_share_of_last_blocks, kernel_times, trace_facts
from evaluators.profiling.occupancy import occupancy, register_share
from evaluators.profiling.vectorization import parse_report

SASS = """
\t\tFunction : add
        /*0000*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0010*/               @P0 LDG.E R8, desc[UR4][R6.64] ;
        /*0020*/              @!P1 LDG.E.U16 R9, desc[UR4][R6.64+0x2] ;
        /*0030*/                   HMMA.16816.F32 R4, R4, R8, R4 ;
        /*0040*/                   HFMA2.MMA R2, -RZ, RZ, 0, 0 ;
        /*0050*/                   STL [R1], R4 ;
        /*0060*/                   REDG.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R4 ;
        /*0070*/                   STG.E.64 desc[UR4][R2.64], R4 ;
        /*0080*/                   SHFL.DOWN PT, R5, R4, 0x10, 0x1f ;
\t\tFunction : copy
        /*0000*/                   UTMALDG.2D [UR8], [UR4] ;
        /*0010*/                   WARPGROUP.ARRIVE ;
        /*0020*/                   HGMMA.64x128x16.F32 R24, gdesc[UR8], R24 ;
"""
RESOURCES = """
Resource usage:
 Common:
  GLOBAL:0
 Function add:
  REG:24 STACK:376 SHARED:5120 LOCAL:0 CONSTANT[0]:552 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
GCC = """
main.cpp:4:24: optimized: loop vectorized using 64 byte vectors
main.cpp:4:24: optimized: loop vectorized using 32 byte vectors
/usr/include/c++/12/vector:9:2: missed: couldn't vectorize loop
main.cpp:11:24: missed: couldn't vectorize loop
main.cpp:12:23: missed: not vectorized: no vectype for stmt: _5 = *_4;
 scalar_type: float
main.cpp:3:7: warning: unused variable 'n' [-Wunused-variable]
"""
CLANG = """
main.cpp:4:5: remark: vectorized loop (vectorization width: 8, interleaved count: 4) [-Rpass=loop-vectorize]
main.cpp:11:5: remark: loop not vectorized: value that could not be identified as reduction is used outside \
the loop [-Rpass-analysis=loop-vectorize]
main.cpp:11:5: remark: loop not vectorized [-Rpass-missed=loop-vectorize]
"""


def test_instructions_are_counted() -> None:
    add, copy = parse_sass(SASS).values()
    assert add.load_bits == {16: 1, 32: 1, 128: 1}
    assert add.store_bits == {64: 1}
    assert add.tensor == {"HMMA": 1}  # HFMA2.MMA is a scalar instruction of that name
    assert (add.spill_loads, add.spill_stores, add.atomics, add.combines) == (0, 1, 1, 1)
    assert copy.tensor == {"HGMMA": 1}


def test_resources_are_read() -> None:
    add, copy = static_facts(RESOURCES, SASS).functions
    assert (add.registers, add.stack_bytes, add.shared_bytes, add.spill_stores) == (24, 376, 5120, 1)
    assert (copy.name, copy.registers) == ("copy", 0)


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "threads", "blocks", "share", "limit"),
    [
        (209, 0, 256, 1, 0.125, "registers"),
        (108, 0, 256, 2, 0.25, "registers"),
        (95, 16384, 128, 5, 0.3125, "registers"),
        (45, 2048, 128, 10, 0.625, "registers"),
        (16, 163840, 1024, 1, 0.5, "shared memory"),
        (22, 0, 32, 32, 0.5, "blocks"),
        (30, 4096, 256, 8, 1.0, "warps"),
    ],
)
def test_occupancy_is_what_the_profiler_computes(
    registers: int, shared_bytes: int, threads: int, blocks: int, share: float, limit: str
) -> None:
    """As ncu gives it for the planted kernels on an H200."""
    found = occupancy("9.0", registers=registers, shared_bytes=shared_bytes, threads=threads)
    assert found is not None
    assert (found.blocks, found.share, found.limit) == (blocks, share, limit)


def test_occupancy_may_be_unknown() -> None:
    assert occupancy("99.0", registers=32, shared_bytes=0, threads=128) is None
    assert occupancy("9.0", registers=32, shared_bytes=300_000, threads=128) is None
    assert register_share("9.0", 209) == 0.125
    assert register_share("", 209) == 1.0


def launch(start_ns: int, duration_ns: int, name: str = "k", blocks: int = 198) -> KernelLaunch:
    return KernelLaunch(
        name=name,
        start_ns=start_ns,
        duration_ns=duration_ns,
        grid=(blocks, 1, 1),
        block=(128, 1, 1),
        registers=32,
        shared_bytes=0,
    )


def test_gaps_are_those_within_calls() -> None:
    trace = trace_facts([launch(0, 1000), launch(4000, 1000), launch(90_000, 1000), launch(92_000, 1000)], 2)
    assert gaps_us(trace) == 2.0  # 3 us in the first call, 1 us in the second
    assert kernel_times(trace)[0].launches == 2
    assert kernel_times(trace)[0].mean_us == 1.0


def test_kernels_that_overlap_have_no_gap() -> None:
    assert gaps_us(trace_facts([launch(0, 5000), launch(1000, 500), launch(5000, 100)], 1)) == 0.0


def test_blocks_are_dealt_out() -> None:
    assert idle_share_of_last_blocks(launch(0, 1, blocks=198), 132) == 0.25
    assert idle_share_of_last_blocks(launch(0, 1, blocks=264), 132) == 0.0


def test_gccs_report_is_read() -> None:
    source = [""] * 10 + ["    for (long i = 1; i < n; i++)"]
    found = parse_report(GCC, "main.cpp", source)
    assert found.vector_loops == (4,)
    assert found.scalar_loops == (
        ScalarLoop(line=11, reason="no vectype for stmt: _5 = *_4;", source="for (long i = 1; i < n; i++)"),
    )
    assert found.warnings == ("line 3: unused variable 'n' [-Wunused-variable]",)


@pytest.mark.parametrize(
    ("line", "loops"),
    [
        ("acc = _mm512_fmadd_ps(a, b, acc);", 0),
        ('asm volatile("tdpbf16ps %tmm2, %tmm1, %tmm0");', 0),
        ("sum = vaddq_f32(sum, vld1q_f32(x));", 0),
        ("float* x = (float*)_mm_malloc(n, 64);", 1),
    ],
)
def test_loops_of_intrinsics_are_not_called_scalar(line: str, loops: int) -> None:
    assert len(parse_report(GCC, "main.cpp", [line]).scalar_loops) == loops


def test_clangs_report_is_read() -> None:
    found = parse_report(CLANG, "main.cpp")
    assert found.vector_loops == (4,)
    assert [each.line for each in found.scalar_loops] == [11]
    assert found.scalar_loops[0].reason.startswith("value that could not be identified as reduction")
