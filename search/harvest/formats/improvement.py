"""Format improvement: from a kernel and an idea to a faster kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from evaluators.rewards.completions import kernel_answer
from search.harvest.conversations import CONVERSATION, asks_for_code, conversation
from search.harvest.corpus import Corpus, HarvestedRun, faster, task
from search.harvest.rows import ORIGIN, TASK, Row, columns, timed, times
from search.records.tree import Variant


class Improvement:
    """Every kernel that is significantly faster than the one its idea started from."""

    name = "improvement"
    about = (
        "A correct kernel, an idea, and the faster kernel that resulted from it. The 95 % intervals of the "
        "two speedups do not overlap, and both were measured on the same kind of device."
    )
    columns = (
        *CONVERSATION,
        *TASK,
        *columns(
            "string",
            before="the kernel that the idea starts from",
            idea="the idea",
            category="category of the idea, one of six",
            after="the faster kernel",
            language="language of the faster kernel",
        ),
        *timed("before_", "the kernel before"),
        *timed("after_", "the kernel after"),
        *columns("float64", gain="speedup after divided by speedup before"),
        *ORIGIN,
    )

    def rows(self, corpus: Corpus, left_out: Counter[str]) -> Iterator[Row]:
        """A row per variant that is faster than its parent, which may be a library kernel."""
        for run in corpus.runs:
            for variant in run.written.values():
                if row := self._row(run, variant):
                    yield row
                elif variant.timing is not None:
                    left_out["correct kernels that are not significantly faster than their seed"] += 1

    def _row(self, run: HarvestedRun, variant: Variant) -> Row | None:
        before, after = run.seed_of(variant), variant.evaluation
        if before is None or before.evaluation is None or after is None:
            return None
        if not faster(after, before.evaluation):
            return None
        idea, asked = run.state.tree.ideas[variant.idea], task(run.problem)
        gain = after.speedup / before.evaluation.speedup
        brief = run.brief(variant)
        values = asked | {
            **conversation(asks_for_code(run.problem, brief), kernel_answer(variant.kernel), brief),
            "before": before.kernel.source,
            "idea": idea.text,
            "category": idea.category.value,
            "after": variant.kernel.source,
            "language": variant.kernel.language,
            **times("before_", before.evaluation),
            **times("after_", after),
            "gain": gain,
            **run.origin(variant),
            "variants": [before.id, variant.id],
        }
        compared = (asked["reference"], before.kernel.source, variant.kernel.source)
        return Row(values=values, compared=compared, worth=gain)
