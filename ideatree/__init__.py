"""Ideatree's Python API: judge kernels, run searches, open runs, compare strategies, harvest data, use the
library.

    import ideatree

    with ideatree.Evaluator(device="cpu") as evaluator:
        evaluation = evaluator.evaluate("level1/softmax", source)

    run = ideatree.search("level1/softmax", rounds=3)
    run = ideatree.open_run("outputs/level1/softmax/2026-01-31_12-00-00")
    comparison = ideatree.compare("level1/softmax", strategies=["idea_branching", "best_of_n"], seeds=3)
    ideatree.harvest("sft", out="datasets/sft")
    entries = ideatree.open_library().entries()

`docs/guides/python.md` explains it. The `ideatree` command is in `commands.py`.
"""

from evaluators.base.usage_error import UsageError
from evaluators.device.settings import Settings
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.records.timing import Plan
from ideatree.comparisons import Comparison, compare, open_comparison
from ideatree.corpora import open_corpus
from ideatree.evaluator import AsyncEvaluator, Evaluator, report
from ideatree.harvests import harvest
from ideatree.problems import load_problem
from ideatree.runs import Run, open_run
from ideatree.searches import resume, resume_async, search, search_async
from kernel_library import best
from kernel_library.catalogue.library import open_library

__all__ = [
    "AsyncEvaluator",
    "Comparison",
    "Evaluation",
    "Evaluator",
    "Kernel",
    "Plan",
    "Problem",
    "Run",
    "Settings",
    "Status",
    "UsageError",
    "best",
    "compare",
    "harvest",
    "load_problem",
    "open_comparison",
    "open_corpus",
    "open_library",
    "open_run",
    "report",
    "resume",
    "resume_async",
    "search",
    "search_async",
]
