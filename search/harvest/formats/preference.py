"""Format preference: pairs of a better and a worse kernel or idea."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from evaluators.base.compiler_messages import without_folders
from evaluators.rewards.completions import kernel_answer
from search.harvest.conversations import (
    ASKED,
    MESSAGE,
    PROMPT,
    asks_for_code,
    asks_for_idea,
    choice,
)
from search.harvest.corpus import Corpus, HarvestedRun, faster, task
from search.harvest.rows import ORIGIN, TASK, Column, Row, columns, timed, times
from search.proposers.llm.answers import ideas_answer
from search.records.tree import Variant, fastest


class Preference:
    """Pairs within an idea, and between ideas for one parent: the fastest correct variant against each other
    one.

    The rejected variant failed, cheated (the row has the rule that it broke), or is significantly slower: the
    95 % intervals do not overlap.
    """

    name = "preference"
    about = (
        "Two kernels for one task. The chosen one is correct and, if the other is correct, too, "
        "significantly faster. A kernel that cheated is always the rejected one; the row has its rule."
    )
    columns = (
        PROMPT,
        ASKED,
        Column(
            name="chosen", type=MESSAGE, meaning="the better answer: the kernel, or for `parent` the idea"
        ),
        Column(name="rejected", type=MESSAGE, meaning="the other answer"),
        *TASK,
        *columns(
            "string",
            of="`idea`: two variants of one idea; `parent`: the best variants of two ideas for one kernel",
            parent="the kernel that both start from; empty for the reference",
            chosen_idea="the idea behind the chosen kernel",
            rejected_idea="the idea behind the rejected one",
            chosen_kernel="the better kernel",
            rejected_kernel="the other kernel",
            reason="`slower`, or the status of the rejected kernel (`rejected` if it cheated)",
            rejected_rule="the rule that it broke, if it cheated",
            rejected_log="the evaluator's log for it",
        ),
        *timed("chosen_", "the chosen kernel"),
        *timed("rejected_", "the rejected kernel; null where it failed"),
        *ORIGIN,
    )

    def rows(self, corpus: Corpus, left_out: Counter[str]) -> Iterator[Row]:
        """The pairs of each run, pairs within an idea first."""
        for run in corpus.runs:
            ideas: defaultdict[str, list[Variant]] = defaultdict(list)
            parents: defaultdict[str, list[Variant]] = defaultdict(list)
            for variant in run.written.values():
                ideas[variant.idea].append(variant)
            for variants in ideas.values():
                yield from self._pairs(run, "idea", variants, left_out)
                parents[variants[0].parent].append((fastest(variants, 1) or variants)[0])
            for variants in parents.values():
                yield from self._pairs(run, "parent", variants, left_out)

    def _pairs(
        self, run: HarvestedRun, of: str, variants: Sequence[Variant], left_out: Counter[str]
    ) -> Iterator[Row]:
        for chosen in fastest(variants, 1):
            for other in variants:
                assert chosen.evaluation is not None
                assert other.evaluation is not None
                same = other.kernel.id == chosen.kernel.id
                if other.evaluation.timing is None or faster(chosen.evaluation, other.evaluation):
                    if not same:
                        yield self._row(run, of, chosen, other)
                elif not same:
                    left_out["pairs whose intervals overlap"] += 1

    def _row(self, run: HarvestedRun, of: str, chosen: Variant, rejected: Variant) -> Row:
        assert chosen.evaluation is not None
        assert rejected.evaluation is not None
        ideas, asked, parent = run.state.tree.ideas, task(run.problem), run.seed_of(chosen)
        verdict = rejected.evaluation
        values = asked | {
            **self._choice(run, of, chosen, rejected),
            "of": of,
            "parent": parent.kernel.source if parent else "",
            "chosen_idea": ideas[chosen.idea].text,
            "rejected_idea": ideas[rejected.idea].text,
            "chosen_kernel": chosen.kernel.source,
            "rejected_kernel": rejected.kernel.source,
            "reason": "slower" if verdict.timing else verdict.status.value,
            "rejected_rule": verdict.rule,
            "rejected_log": without_folders(verdict.log),
            **times("chosen_", chosen.evaluation),
            **times("rejected_", verdict),
            **run.origin(chosen, rejected),
        }
        compared = (asked["reference"], chosen.kernel.source, rejected.kernel.source)
        return Row(values=values, compared=compared, worth=chosen.evaluation.speedup_low)

    def _choice(self, run: HarvestedRun, of: str, chosen: Variant, rejected: Variant) -> dict[str, Any]:
        """Within an idea: the prompt for its code and two kernels. Between ideas: the prompt for an idea,
        with the history that both ideas were shown, and two ideas."""
        brief = run.brief(chosen)
        if of == "idea":
            prompt = asks_for_code(run.problem, brief)
            answers = kernel_answer(chosen.kernel), kernel_answer(rejected.kernel)
            return choice(prompt, *answers, asked=brief.asked is not None)
        assert run.state.started is not None
        ideas = (brief.idea, run.state.tree.ideas[rejected.idea])
        known = set(ideas[0].known_ideas) & set(ideas[1].known_ideas)
        history = [each for each in run.state.tree.history() if each.idea.id in known]
        prompt = asks_for_idea(run.problem, brief, history, run.state.started.entries)
        return choice(prompt, *(ideas_answer([idea]) for idea in ideas), asked=False)
