"""The rules that turn the facts of a profile into findings. `RULES` is the table of all of them.

Each rule has checks at some levels, in the order in which they are trusted. The first check whose level was
reached decides: counters that show no bank conflicts overrule what the code looks like.

The thresholds in the checks were chosen so that each of ten kernels with a planted fault gets its own finding
first, and none that is not true (see `tests/evaluators/diagnose/`).
"""

from __future__ import annotations

from dataclasses import dataclass

from evaluators.profiling import code_checks as code
from evaluators.profiling import counter_checks as counters
from evaluators.profiling import trace_checks as trace
from evaluators.profiling.evidence import Check
from evaluators.profiling.facts import ProfileFacts
from evaluators.records.diagnosis import Finding, Level


@dataclass(frozen=True, kw_only=True)
class DiagnosisRule:
    """A bottleneck, how to see it, and what usually helps."""

    name: str
    checks: tuple[tuple[Level, Check], ...]
    helps: str

    def finding(self, facts: ProfileFacts) -> Finding | None:
        """The finding, by the first check whose level was reached."""
        known = {
            Level.STATIC: facts.static,
            Level.TRACE: facts.trace,
            Level.COUNTERS: facts.counters,
        }
        for level, check in self.checks:
            if known[level] is None:
                continue
            evidence = check(facts)
            if evidence is None:
                return None
            return Finding(
                name=self.name,
                evidence=evidence.text,
                confidence=level,
                helps=self.helps,
                share=round(min(max(evidence.share, 0.0), 1.0), 3),
                kernel=evidence.kernel,
            )
        return None


def findings(facts: ProfileFacts) -> tuple[Finding, ...]:
    """All findings, the one that costs most first."""
    found = [finding for rule in RULES if (finding := rule.finding(facts)) is not None]
    return tuple(sorted(found, key=lambda each: -each.share))


RULES = (
    DiagnosisRule(
        name="uncoalesced",
        checks=((Level.COUNTERS, counters.counted(counters.uncoalesced)),),
        helps="let neighbouring threads access neighbouring addresses: swap the roles of the thread indices, "
        "or stage a tile in shared memory",
    ),
    DiagnosisRule(
        name="bank conflicts",
        checks=((Level.COUNTERS, counters.counted(counters.bank_conflicts)),),
        helps="pad the rows of the shared tile by one element, or swizzle its columns",
    ),
    DiagnosisRule(
        name="spills",
        checks=(
            (Level.COUNTERS, counters.counted(counters.spills)),
            (Level.STATIC, code.compiled(code.spills)),
        ),
        helps="use a smaller tile or fewer values per thread, fewer stages, or raise the limit on registers; "
        "index local arrays with constants only",
    ),
    DiagnosisRule(
        name="partial wave",
        checks=(
            (Level.COUNTERS, counters.counted(counters.partial_wave)),
            (Level.TRACE, trace.traced(trace.partial_wave)),
        ),
        helps="choose a grid that is a multiple of the blocks that run at once, use smaller blocks, or a "
        "persistent kernel that deals out the work",
    ),
    DiagnosisRule(
        name="latency-bound",
        checks=(
            (Level.COUNTERS, counters.counted(counters.latency)),
            (Level.TRACE, trace.traced(trace.few_warps)),
        ),
        helps="start more warps (more or larger blocks), and let each thread have several independent loads "
        "in flight: unroll, wider loads, asynchronous copies",
    ),
    DiagnosisRule(
        name="launch-bound",
        checks=((Level.TRACE, trace.many_launches), (Level.COUNTERS, counters.short_launches)),
        helps="do the work in fewer launches: fuse the kernels, or let one launch loop over the pieces; "
        "a single short launch leaves little to gain",
    ),
    DiagnosisRule(
        name="tensor cores idle",
        checks=(
            (Level.COUNTERS, counters.counted(counters.idle_tensor_cores)),
            (Level.STATIC, code.no_tensor_code),
        ),
        helps="compute the products with tensor-core instructions (tl.dot, wmma, mma, wgmma) and feed them "
        "from shared memory with several stages",
    ),
    DiagnosisRule(
        name="TF32 missing",
        checks=((Level.COUNTERS, counters.counted(counters.no_tf32)), (Level.STATIC, code.no_tf32_code)),
        helps='use tensor cores with rounded factors: input_precision="tf32" in tl.dot, '
        "or mma with tf32 operands",
    ),
    DiagnosisRule(
        name="atomics contended",
        checks=(
            (Level.COUNTERS, counters.counted(counters.contended_atomics)),
            (Level.STATIC, code.compiled(code.lone_atomics)),
        ),
        helps="combine the values of a warp with shuffles and those of a block in shared memory, then issue "
        "one atomic per block; or write partial results and add them in a second pass",
    ),
    DiagnosisRule(
        name="occupancy limited by registers",
        checks=(
            (Level.COUNTERS, counters.counted(counters.register_limit)),
            (Level.TRACE, trace.traced(trace.register_limit)),
            (Level.STATIC, code.compiled(code.many_registers)),
        ),
        helps="keep fewer values per thread (a smaller tile, less unrolling), or bound the registers with "
        "__launch_bounds__ if that causes no spills",
    ),
    DiagnosisRule(
        name="memory bandwidth exhausted",
        checks=((Level.COUNTERS, counters.counted(counters.full_memory)),),
        helps="only fewer bytes help: fuse with what comes before or after, use a narrower type, "
        "read data once",
    ),
    DiagnosisRule(
        name="far from the roofline",
        checks=((Level.TRACE, trace.far_from_the_floor),),
        helps="use all cores, vector instructions and blocks of data that fit the caches; do not write "
        "intermediate results to memory",
    ),
    DiagnosisRule(
        name="loops not vectorised",
        checks=((Level.STATIC, code.scalar_loops),),
        helps="make iterations independent, use __restrict__ and contiguous accesses, split the loop, or add "
        "#pragma omp simd (with a reduction clause for sums)",
    ),
)
"""All rules. A CPU has the facts of the last two only."""
