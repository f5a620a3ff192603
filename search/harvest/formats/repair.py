"""Format repair: from a failed kernel and the evaluator's log to a correct kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from evaluators.base.compiler_messages import without_folders
from evaluators.records.evaluation import Status
from evaluators.rewards.completions import kernel_answer
from search.harvest.conversations import CONVERSATION, asks_for_repair, conversation
from search.harvest.corpus import Corpus, task
from search.harvest.rows import ORIGIN, TASK, Row, columns, timed, times


class Repair:
    """Every correct variant that was written to repair a failed one, according to the journal.

    Other variants of the same idea do not count: they are separate attempts, unrelated to the failure.
    """

    name = "repair"
    about = (
        "A kernel that failed, the evaluator's log, and the correct kernel that was written to repair it. "
        "If the failed one cheated, its status is `rejected`."
    )
    columns = (
        *CONVERSATION,
        *TASK,
        *columns(
            "string",
            idea="the idea behind both",
            failed="the kernel that failed",
            status="`compile_error`, `runtime_error`, `incorrect`, `timeout`, `crashed` or `rejected`",
            rule="the rule that it broke, if it was rejected",
            log="the evaluator's log for it",
            fixed="the correct kernel",
            language="language of the correct kernel",
        ),
        *timed("fixed_", "the correct kernel"),
        *ORIGIN,
    )

    def rows(self, corpus: Corpus, left_out: Counter[str]) -> Iterator[Row]:
        """A row per successful repair."""
        for run in corpus.runs:
            for fixed in run.judged.values():
                failed, verdict = run.judged.get(fixed.repairs), fixed.evaluation
                if failed is None or verdict is None:
                    continue
                if verdict.status is not Status.CORRECT:
                    left_out["repairs that failed"] += 1
                    continue
                failure, asked = failed.evaluation, task(run.problem)
                if failure is None or failure.status is Status.CORRECT:
                    continue
                brief = run.brief(fixed)
                prompt = asks_for_repair(run.problem, brief, failed)
                values = asked | {
                    **conversation(prompt, kernel_answer(fixed.kernel), brief),
                    "idea": run.state.tree.ideas[fixed.idea].text,
                    "failed": failed.kernel.source,
                    "status": failure.status.value,
                    "rule": failure.rule,
                    "log": without_folders(failure.log),
                    "fixed": fixed.kernel.source,
                    "language": fixed.kernel.language,
                    **times("fixed_", verdict),
                    **run.origin(fixed, failed),
                }
                compared = (asked["reference"], failed.kernel.source, fixed.kernel.source)
                yield Row(values=values, compared=compared, worth=verdict.speedup_low)
