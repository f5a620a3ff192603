"""Format sft: from a reference and an idea to a correct kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from evaluators.rewards.completions import kernel_answer
from search.harvest.conversations import CONVERSATION, asks_for_code, conversation
from search.harvest.corpus import Corpus, rules, task
from search.harvest.rows import ORIGIN, STRINGS, TASK, Column, Row, columns, timed, times

TAKES_ALL = "format.min_speedup=0 takes every correct one"


class Sft:
    """Supervised fine-tuning: every correct kernel of the runs and the library whose speedup is significantly
    above `min_speedup` (lower end of the 95 % interval); 0 takes every correct one. Raises ValueError for a
    negative `min_speedup`."""

    name = "sft"
    columns = (
        *CONVERSATION,
        *TASK,
        *columns("string", rules="JSON: tolerance, precision, libraries and device used to judge it"),
        *columns("string", idea="the idea behind the kernel", category="category of the idea, one of six"),
        Column(name="lineage", type=STRINGS, meaning="the ideas before it, oldest first"),
        *columns(
            "string",
            kernel="source that defines `ModelNew`",
            language="its language, such as `triton`",
        ),
        *timed("kernel_", "the kernel"),
        *columns(
            "float64", eager_ms="time of eager PyTorch", compile_ms="time of `torch.compile`, if it was timed"
        ),
        *ORIGIN,
    )

    def __init__(self, min_speedup: float = 1.0) -> None:
        if not min_speedup >= 0:
            raise ValueError(f"format.min_speedup is {min_speedup}; it must not be negative")
        self._min_speedup = min_speedup
        self.about = (
            "Supervised fine-tuning: a PyTorch reference, an optimisation idea, and a correct kernel. The "
            f"lower end of the 95 % interval of its speedup over eager is above {min_speedup:g}."
        )

    def rows(self, corpus: Corpus, left_out: Counter[str]) -> Iterator[Row]:
        """A row per correct kernel that is fast enough."""
        for each in corpus.solutions():
            timing = each.evaluation.timing
            assert timing is not None, "a solution is correct"
            if timing.speedup_low <= self._min_speedup:
                left_out[f"kernels whose interval is not above {self._min_speedup:g}x ({TAKES_ALL})"] += 1
                continue
            asked = task(each.problem)
            prompt = asks_for_code(each.problem, each.brief)
            values = asked | {
                **conversation(prompt, kernel_answer(each.kernel), each.brief),
                "rules": rules(each.problem),
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
                worth=timing.speedup_low,
            )
