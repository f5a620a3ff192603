"""The counters level: reads a report of NVIDIA's profiler `ncu`.

NVIDIA's own module `ncu_report` reads it, not `ncu --import … --csv`: the module needs neither `ncu` nor a
GPU, and only it gives the source line of each sample and the kind of each estimated speedup.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

from evaluators.profiling.facts import CounterFacts, KernelCounters, SampledStall, VendorRule

INSTALL = "the package ncu-report is missing; pip install -e '.[profile]'"
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
SAMPLES = "smsp__pcsamp_warps_issue_stalled_"
BREAKDOWNS = (
    "breakdown:gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "breakdown:sm__throughput.avg.pct_of_peak_sustained_elapsed",
)
UNITS = {
    "DRAM": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", ("dram__", "fbpa__")),
    "L2": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", ("lts__",)),
    "L1 and shared memory": ("l1tex__throughput.avg.pct_of_peak_sustained_active", ("l1tex__",)),
    "multiprocessor": ("sm__throughput.avg.pct_of_peak_sustained_elapsed", ("sm__", "idc__")),
}
"""Units with the metric of their throughput and the prefixes of its parts."""
PARTS = {
    "l1tex__data_pipe_lsu_wavefronts": "passes through the data stage for loads and stores",
    "l1tex__lsuin_requests": "requests of loads and stores",
    "l1tex__lsu_writeback_active": "return of loaded data",
    "l1tex__m_xbar2l1tex_read_sectors": "sectors read from L2",
    "l1tex__m_l1tex2xbar_req_cycles_active": "requests to L2",
    "l1tex__data_bank_reads": "reads of data banks",
    "lts__t_sectors": "sectors looked up",
    "lts__d_sectors": "sectors of data",
    "lts__d_sectors_fill_device": "sectors filled from memory",
    "lts__t_tag_requests": "tag lookups",
    "lts__xbar2lts_cycles_active": "requests from the multiprocessors",
    "lts__lts2xbar_cycles_active": "answers to the multiprocessors",
    "lts__d_atomic_input_cycles_active": "atomic operations",
    "dram__cycles_active": "transfers",
    "sm__inst_executed": "executed instructions",
    "sm__issue_active": "issue slots",
    "sm__pipe_fma_cycles_active": "multiplications and additions (FMA pipe)",
    "sm__pipe_fmaheavy_cycles_active": "multiplications and additions (FMA heavy pipe)",
    "sm__pipe_alu_cycles_active": "integer and logic operations (ALU pipe)",
    "sm__pipe_fp64_cycles_active": "double precision (FP64 pipe)",
    "sm__inst_executed_pipe_lsu": "load and store instructions",
    "sm__inst_executed_pipe_xu": "special functions and conversions (XU pipe)",
    "sm__pipe_tensor_cycles_active": "tensor cores",
    "sm__mio_inst_issued": "instructions for shared memory and special functions",
}
"""Words for the parts that are often the busiest."""
PLACES, MOST_RULES = 2, 4
LONGEST_MESSAGE = 240
INSTRUCTION_CHARACTERS = 60


def is_installed() -> bool:
    """Whether reports can be read."""
    return importlib.util.find_spec("ncu_report") is not None


def read_report(path: Path) -> CounterFacts:
    """The profiled launches in a report.

    Raises:
        RuntimeError: if the module is missing, or the report has no kernel.
    """
    try:
        import ncu_report
    except ImportError as error:
        raise RuntimeError(INSTALL) from error
    context = ncu_report.load_report(str(path))
    actions = [
        one.action_by_idx(number)
        for one in map(context.range_by_idx, range(context.num_ranges()))
        for number in range(one.num_actions())
    ]
    if not actions:
        raise RuntimeError("ncu profiled no kernel")
    kernels = [_kernel(each, ncu_report.SpeedupType_GLOBAL) for each in actions]
    return CounterFacts(kernels=tuple(sorted(kernels, key=lambda each: -each.duration_us)))


def _kernel(action: Any, of_run_time: Any) -> KernelCounters:
    metrics = {}
    for name in action.metric_names():
        if name.startswith(("device__", "breakdown:", "group:")):
            continue
        value = action.metric_by_name(name).value()
        if isinstance(value, (int, float)) and math.isfinite(value):
            metrics[name] = float(value)
    return KernelCounters(
        name=str(action.name()),
        metrics=metrics,
        busiest=_busiest_parts(action, metrics),
        stalls=_stalls(action, metrics),
        rules=_rules(action, of_run_time),
    )


def _busiest_parts(action: Any, metrics: dict[str, float]) -> dict[str, str]:
    """The busiest part of each unit, by the unit's metric."""
    parts: list[str] = []
    for breakdown in BREAKDOWNS:
        if (listed := action.metric_by_name(breakdown)) is not None:
            parts += str(listed.value()).split(",")
    found = {}
    for metric, prefixes in UNITS.values():
        own = [part for part in parts if part.startswith(prefixes) and part in metrics]
        if own:
            most = max(own, key=lambda part: metrics[part])
            short = most.partition(".")[0]
            found[metric] = f"{PARTS.get(short, short)}, {metrics[most]:.0f} %"
    return found


def _stalls(action: Any, metrics: dict[str, float]) -> tuple[SampledStall, ...]:
    """The reasons why warps waited, the longest first. `selected` is the cycle of the issue itself."""
    cycles = {match[1]: value for name, value in metrics.items() if (match := STALL.fullmatch(name))}
    ordered = sorted(cycles, key=lambda reason: -cycles[reason])
    return tuple(
        SampledStall(reason=reason, cycles=cycles[reason], places=_places(action, reason))
        for reason in ordered
        if cycles[reason] > 0
    )


def _places(action: Any, reason: str) -> tuple[str, ...]:
    """Where most samples of a reason were taken: source lines if the binary has them, else instructions."""
    metric = action.metric_by_name(SAMPLES + reason) or action.metric_by_name(f"{SAMPLES}{reason}s")
    if metric is None or not metric.has_correlation_ids():
        return ()
    addresses, samples = metric.correlation_ids(), Counter[str]()
    for number in range(metric.num_instances()):
        if count := metric.as_uint64(number):
            samples[_place(action, addresses.as_uint64(number))] += count
    total = samples.total()
    return tuple(f"{place} ({count / total:.0%})" for place, count in samples.most_common(PLACES))


def _place(action: Any, address: int) -> str:
    source = action.source_info(address)
    if source is not None and source.line():
        return f"{Path(source.file_name()).name}:{source.line()}"
    return " ".join(str(action.sass_by_pc(address)).split())[:INSTRUCTION_CHARACTERS]


def _rules(action: Any, of_run_time: Any) -> tuple[VendorRule, ...]:
    """The rules that estimate a part of the run time, the largest first. Estimates for one unit alone are
    left out, because they say nothing about the run time."""
    found = []
    for each in action.rule_results_as_dicts():
        estimate = each.get("speedup_estimation")
        message = each.get("rule_message") or {}
        if estimate and estimate.get("type") == of_run_time:
            found.append(
                VendorRule(
                    title=str(message.get("title") or each.get("name") or each.get("rule_identifier")),
                    message=_first_sentences(str(message.get("message", ""))),
                    percent=float(estimate["speedup"]),
                )
            )
    return tuple(sorted(found, key=lambda rule: -rule.percent)[:MOST_RULES])


def _first_sentences(text: str) -> str:
    """Whole sentences from a message's beginning, without its links to other sections."""
    plain = re.sub(r"@(?:section|url):[^@]*?:([^@:]*)(?::https?://[^@]*)?@", r"\1", text)
    kept = ""
    for sentence in re.split(r"(?<=[a-z)%]\.)\s*(?=[A-Z])", " ".join(plain.split())):
        if kept and len(kept) + len(sentence) > LONGEST_MESSAGE:
            break
        kept = f"{kept} {sentence}".strip()
    return kept
