"""Lists the library's entries:

    ideatree list
    ideatree list op=softmax dtype=float16 architecture=9.0
    ideatree list library.root=s3://bucket/library

The table has one line per measurement. Columns:

    speedup       eager PyTorch's time / the kernel's time
    roofline      the least time for the work / the kernel's time. The least time assumes this device's
                  peak rates: PyTorch's fastest copy, sum, fill and matmul, measured once. `>100%`: the
                  kernel is faster than these rates allow, so the true share is unknown. The rates can be
                  too low because other programs used the device during their measurement (common on CPUs),
                  because the kernel's data was partly in a cache, or because PyTorch does not reach the
                  hardware's peak.
    error         the normwise error against float64
    best          marks the fastest entry for its problem on its architecture
    verified      the result of the last `ideatree verify`

The exit status is 0, or 2 for a wrong call.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evaluators.app.command import command, log_to
from evaluators.records.evaluation import Evaluation, share_text
from kernel_library.app.entries import FilterConfig, check_filters, chosen, expand_filters, open_library
from kernel_library.catalogue.entry import Entry, Measurement
from kernel_library.catalogue.retrieval import bests

WIDTH = 200
"""Characters per line if the output is not a terminal."""


@dataclass
class LibraryListConfig(FilterConfig):
    """The config of the command."""


@command("kernel_library.list", LibraryListConfig, __doc__, expand=expand_filters)
def main(config: DictConfig) -> int:
    """Runs the command; returns its exit status."""
    console = Console()
    log_to(Console(stderr=True))
    check_filters(config)
    _, entries = open_library(config)
    if not console.is_terminal:
        console.width = WIDTH
    found = chosen(config, entries)
    if found:
        console.print(_table(found, bests(entries)))
    else:
        console.print(f"no entries match (the library has {len(entries)})", highlight=False)
    return 0


def _table(
    found: Sequence[tuple[Entry, Sequence[Measurement]]], best: Mapping[tuple[str, str], str]
) -> Table:
    columns = ("entry", "op", "language", "problem", "dtype", "device", "ms", "speedup", "vs compile")
    table = Table(*columns, "roofline", "error", "best", "verified", box=box.SIMPLE)
    for entry, measurements in found:
        for each in measurements:
            is_best = best[each.problem.id, each.architecture] == entry.id
            problem = f"{each.problem.name}{', both passes' * each.problem.backward}"
            about = (entry.id, entry.op, entry.kernel.language, problem, each.problem.dtype)
            cells = (*about, each.evaluation.environment.get("device", ""), *_figures(each.evaluation))
            verified = "; ".join(entry.failure(check) or "confirmed" for check in entry.checks_of(each))
            table.add_row(*map(escape, cells), "best" if is_best else "", escape(verified))
    return table


def _figures(evaluation: Evaluation) -> tuple[str, str, str, str, str]:
    """Time, speedups against eager and `torch.compile`, share of the roofline, and error, as text."""
    timing, share = evaluation.timing, evaluation.roofline_share
    assert timing is not None
    compiled = timing.speedup_vs_compile
    return (
        f"{timing.kernel_ms:.4g}",
        f"{timing.speedup:.2f}x",
        "" if compiled is None else f"{compiled:.2f}x",
        "" if share is None else share_text(share),
        "" if evaluation.correctness is None else f"{evaluation.correctness.normwise_error:.1e}",
    )


if __name__ == "__main__":
    sys.exit(main())
