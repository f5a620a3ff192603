"""From a reference and an idea to a kernel that is right."""

from __future__ import annotations

from collections.abc import Iterator

from search.harvests.corpus import Corpus, task
from search.harvests.rows import ORIGIN, STRINGS, TASK, Column, Row, columns, timed, times


class Sft:
    """Supervised fine-tuning: every correct kernel of runs and library."""

    name = "sft"
    about = (
        "Supervised fine-tuning: a PyTorch reference and an optimisation idea, and a kernel that is right."
    )
    columns = (
        *TASK,
        *columns("string", idea="the idea that was carried out", category="of the idea, one of six"),
        Column(name="lineage", type=STRINGS, meaning="the ideas carried out before it, oldest first"),
        *columns("string", kernel="source that defines `ModelNew`", language="`triton`, `cuda` or `cpp`"),
        *timed("kernel_", "the kernel"),
        *columns("float64", eager_ms="of eager PyTorch", compile_ms="of `torch.compile`, where it was timed"),
        *ORIGIN,
    )

    def rows(self, corpus: Corpus) -> Iterator[Row]:
        """One for each correct kernel."""
        for each in corpus.solutions():
            timing = each.evaluation.timing
            assert timing is not None, "a solution is correct"
            asked = task(each.problem)
            values = asked | {
                "idea": each.idea,
                "category": each.category,
                "lineage": list(each.lineage),
                "kernel": each.kernel.source,
                "language": each.kernel.language,
                **times("kernel_", each.evaluation),
                "eager_ms": timing.eager_ms,
                "compile_ms": timing.compile_ms,
                **each.origin,
            }
            yield Row(
                values=values,
                compared=(asked["reference"], each.kernel.source),
                worth=each.evaluation.speedup,
            )
