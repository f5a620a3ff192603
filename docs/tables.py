"""Writes the tables of library kernels into README.md and docs/results/kernels.md, from the kernels' cards,
and those of the searches by a language model into docs/results/language-model.md and docs/results/lessons.md,
from their recordings.

    python docs/tables.py

After `python -m kernel_library.verify` has measured the shipped kernels anew, this takes its figures over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pandas as pd

import ideatree
from evaluators.records.evaluation import Timing
from kernel_library.catalogue.entry import Entry, Measurement
from kernel_library.catalogue.library import FolderLibrary
from search.report.corpus_frames import CorpusFrames

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- docs/tables.py -->", "<!-- end -->"
IN_README = {
    ("conv2d", "100x3x224x224"): ("conv2d, 100×3×224×224 → 96, k 11, s 4", "conv2d"),
    ("conv2d_relu_maxpool", "100x3x224x224"): ("the same + ReLU + max-pool", "conv2d_relu_maxpool"),
    ("layernorm", "16x64x256x256"): ("layernorm, 16×(64×256×256)", "layernorm"),
    ("matmul", "4096x4096"): ("matmul, 4096³, at float32's accuracy", "matmul_float32"),
    ("softmax", "4096x65536"): ("softmax, 4096×65536", "softmax"),
}
"""The title and the search of each case of the README: operation and first input, in float32 on a GPU."""
HEAD = """\
| kernel | first input | eager ms | compile ms | ms | against eager (95 %) | against compile | roofline |
|---|---|---|---|---|---|---|---|"""
README_HEAD = """\
| on an NVIDIA H200, torch 2.11 | a language model's kernel | against eager (95 %) | against `torch.compile` \
| the library's earlier kernel |
|---|---|---|---|---|"""
SEARCHES_HEAD = """\
| search | rounds | correct | best ms | in round | against eager (95 %) | against compile | roofline |
|---|---|---|---|---|---|---|---|"""
IDEAS_HEAD = (
    "ideas | no correct kernel | pay | median gain | best gain | median predicted | measured/predicted |"
)


def results(device: str) -> str:
    """The table of all measurements on GPUs (`cuda`) or on CPUs (`cpu`)."""
    found = list(_measurements(device))
    rows = [_row(name, measurement) for name, measurement in found]
    dates = sorted({measurement.date for _, measurement in found})
    return "\n".join([HEAD, *rows, "", f"Measured on {', '.join(dates)}."])


def readme() -> str:
    """The table of the README: the best of a language model's search, and of the library's other kernels."""
    lines = [README_HEAD]
    rows = dict(_corpus().searches.iterrows())
    by_a_model = {each.id for each in _entries() if each.lineage.run.startswith("language_model/")}
    for (op, first), (title, search) in IN_README.items():
        cards = (
            _timing(each)
            for name, each in _measurements("cuda")
            if (op, first, "float32") == (name.split("/")[0], each.inputs[0], each.problem.dtype)
            and name not in by_a_model
        )
        library = min(cards, key=lambda timing: timing.kernel_ms)
        row = rows[search]
        lines.append(
            f"| {title} | {_found(row)} | {_against_compile(row)} "
            f"| {library.kernel_ms:#.3g} ms, {library.speedup:#.3g}× |"
        )
    return "\n".join(lines)


def _found(row: pd.Series) -> str:
    """The best kernel's time and speedup over eager PyTorch."""
    low, high = row["speedup_low"], row["speedup_high"]
    return f"**{row['kernel_ms']:#.3g} ms** | **{row['speedup']:#.3g}×** ({low:#.3g} to {high:#.3g})"


def _against_compile(row: pd.Series) -> str:
    return f"{row['speedup_vs_compile']:.2f}×" if row["confirmed"] else "not yet measured"


def searches() -> str:
    """The table of the searches by a language model, the one with the largest speedup first."""
    lines = [SEARCHES_HEAD]
    found = _corpus().searches
    for search, row in found[found["correct"] > 0].sort_values("speedup", ascending=False).iterrows():
        lines.append(
            f"| {str(search).replace('_', ' ')} | {row['rounds']} | {row['correct']} of {row['evaluations']} "
            f"| {row['kernel_ms']:#.3g} | {row['best_round']} | **{row['speedup']:#.3g}×** "
            f"({row['speedup_low']:#.3g} to {row['speedup_high']:#.3g}) | {_against_compile(row)} "
            f"| {100 * row['roofline_share']:.0f} % |"
        )
    judged, correct, device_s = (found[name].sum() for name in ("evaluations", "correct", "device_s"))
    total = f"{judged} kernels were judged in {device_s:,.0f} s of device time; {correct} are correct."
    return "\n".join([*lines, "", total])


def ideas(by: str, *, first: int = 1) -> str:
    """What the ideas of these searches gained from the `first` round on, by `round` or `category`. An idea
    pays if its best variant is faster than its seed, beyond noise."""
    corpus = _corpus()
    judged = corpus.variants[corpus.variants["status"] != ""]["idea"]
    found = corpus.ideas[corpus.ideas.index.isin(judged, level="id") & (corpus.ideas["round"] >= first)]
    lines = [f"| {by} | {IDEAS_HEAD}", "|---|---|---|---|---|---|---|---|"]
    for name, own in found.groupby(found[by]):
        measured = own[own["gain"].notna()]
        met = measured["gain"] / measured["predicted_gain"]
        low, middle, high = met.quantile([0.25, 0.5, 0.75])
        lines.append(
            f"| {name} | {len(own)} | {(own['correct'] == 0).sum()} | {100 * measured['pays'].mean():.0f} % "
            f"| {measured['gain'].median():.3g}× | {measured['gain'].max():.3g}× "
            f"| {measured['predicted_gain'].median():.3g}× | {middle:.2f} ({low:.2f} to {high:.2f}) |"
        )
    return "\n".join(lines)


@cache
def _corpus() -> CorpusFrames:
    """The shipped searches by a language model, read once."""
    return ideatree.open_corpus("language_model")


def with_tables(text: str, *tables: str) -> str:
    """The page with these tables between its marks, in their order."""
    head, *sections = text.split(BEGIN)
    assert len(sections) == len(tables), f"{len(sections)} marks for {len(tables)} tables"
    for table, section in zip(tables, sections, strict=True):
        head += f"{BEGIN}\n\n{table}\n\n{END}" + section.partition(END)[2]
    return head


@cache
def _entries() -> list[Entry]:
    """The shipped kernels, by name."""
    return sorted(FolderLibrary(ROOT / "no such folder").entries(), key=lambda each: each.id)


def _measurements(device: str) -> Iterator[tuple[str, Measurement]]:
    for entry in _entries():
        for measurement in entry.measurements:
            if measurement.problem.device == device:
                yield entry.id, measurement


def _row(name: str, measurement: Measurement) -> str:
    on_gpu = measurement.problem.device == "cuda"  # a CPU's caches may pass the peaks of its memory
    share = measurement.evaluation.roofline_share if on_gpu else None
    case = f"{measurement.inputs[0].replace('x', '×')}, {measurement.problem.dtype}"
    case += ", both passes" * measurement.problem.backward
    eager, compiled, kernel, interval, against_compile = _figures(measurement)
    of_roofline = f"{100 * share:.0f} %" if share else ""
    return (
        f"| `{name}` | {case} | {eager} | {compiled} | **{kernel}** | {interval} "
        f"| {against_compile} | {of_roofline} |"
    )


def _figures(measurement: Measurement) -> tuple[str, str, str, str, str]:
    timing = _timing(measurement)
    interval = f"{timing.speedup:.2f}× ({timing.speedup_low:.2f} to {timing.speedup_high:.2f})"
    against_compile = f"{timing.speedup_vs_compile:.2f}×" if timing.speedup_vs_compile else ""
    compiled = f"{timing.compile_ms:#.3g}" if timing.compile_ms else ""
    return f"{timing.eager_ms:#.3g}", compiled, f"{timing.kernel_ms:#.3g}", interval, against_compile


def _timing(measurement: Measurement) -> Timing:
    timing = measurement.evaluation.timing
    assert timing is not None  # the library holds nothing else
    return timing


PAGES: Mapping[str, Callable[[], tuple[str, ...]]] = {
    "README.md": lambda: (readme(),),
    "docs/results/kernels.md": lambda: (results("cuda"), results("cpu")),
    "docs/results/language-model.md": lambda: (searches(),),
    "docs/results/lessons.md": lambda: (ideas("round"), ideas("category", first=2)),
}
"""The tables of each page."""

if __name__ == "__main__":
    for name, made in PAGES.items():
        page = ROOT / name
        page.write_text(with_tables(page.read_text(), *made()))
