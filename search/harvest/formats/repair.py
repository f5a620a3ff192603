"""From a kernel that failed and the evaluator's log to one that is right."""

from __future__ import annotations

from collections.abc import Iterator

from evaluators.records.evaluation import Status
from search.harvest.conversations import CONVERSATION, asks_for_repair, conversation
from search.harvest.corpus import Corpus, task
from search.harvest.rows import ORIGIN, TASK, Row, columns, timed, times
from search.proposers.llm.answers import kernel_answer


class Repair:
    """Every correct variant that was written to mend a failed one.

    Only where the journal says so: two variants of one idea are two tries, and the second need not have
    anything to do with what was wrong with the first.
    """

    name = "repair"
    about = (
        "A kernel that failed, the evaluator's log, and the kernel that was written to mend it and is right. "
        "Where the failed one cheated, its status is `rejected`."
    )
    columns = (
        *CONVERSATION,
        *TASK,
        *columns(
            "string",
            idea="the idea that both carry out",
            failed="the kernel that failed",
            status="how: `compile_error`, `runtime_error`, `incorrect`, `timeout`, `crashed`, `rejected`",
            rule="the rule that it broke, if it was rejected",
            log="what the evaluator said of it",
            fixed="the kernel that is right",
            language="of the kernel that is right",
        ),
        *timed("fixed_", "the kernel that is right"),
        *ORIGIN,
    )

    def rows(self, corpus: Corpus) -> Iterator[Row]:
        """One for each repair that worked."""
        for run in corpus.runs:
            for fixed in run.judged.values():
                failed, verdict = run.judged.get(fixed.repairs), fixed.evaluation
                if failed is None or verdict is None or verdict.status is not Status.CORRECT:
                    continue
                failure, asked = failed.evaluation, task(run.problem)
                if failure is None or failure.status is Status.CORRECT:
                    continue
                prompt = asks_for_repair(run.problem, run.brief(fixed), failed)
                values = asked | {
                    **conversation(prompt, kernel_answer(fixed.kernel)),
                    "idea": run.state.tree.ideas[fixed.idea].text,
                    "failed": failed.kernel.source,
                    "status": failure.status.value,
                    "rule": failure.rule,
                    "log": failure.log,
                    "fixed": fixed.kernel.source,
                    "language": fixed.kernel.language,
                    **times("fixed_", verdict),
                    **run.origin(fixed, failed),
                }
                compared = (asked["reference"], failed.kernel.source, fixed.kernel.source)
                yield Row(values=values, compared=compared, worth=verdict.speedup_low)
