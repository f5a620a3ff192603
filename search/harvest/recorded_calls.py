"""What a run's model was asked, word by word, for each kernel that it wrote. An answer that was cut off and
continued is the answer to the first question."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from evaluators.base.jsonl_store import whole_lines
from evaluators.rewards.completions import read_kernels
from search.models.cut_off import continuations
from search.records.model_calls import Cause, Purpose
from search.records.tree import Tree, Variant


@dataclass(frozen=True, kw_only=True)
class AnsweredCall:
    """A call that was answered: the two messages of the prompt, and the answer."""

    system: str
    prompt: str
    answer: str


WRITING = (Purpose.CODE, Purpose.REPAIR)
"""The purposes of calls whose answers are variants."""
MOST_VARIANTS = 1000
"""More than any question asks for."""


class RecordedCalls:
    """The answered calls for code of the run in a folder; none if it called no model."""

    def __init__(self, folder: Path | None = None) -> None:
        self._by_subject: defaultdict[str, list[AnsweredCall]] = defaultdict(list)
        path = folder / "model_calls.jsonl" if folder else None
        if path is None or not path.exists():
            return
        cut_off: defaultdict[str, list[AnsweredCall]] = defaultdict(list)
        for call in whole_lines(path.read_bytes()):
            if call["purpose"] not in WRITING or call["cause"] not in (None, Cause.CUT_OFF):
                continue
            recorded = AnsweredCall(**{each: call[each] for each in ("system", "prompt", "answer")})
            about = call["about"]
            calls = [recorded]
            for first in [each for each in cut_off[about] if recorded.prompt.startswith(each.prompt)]:
                cut_off[about].remove(first)
                answers = continuations(first.answer, recorded.answer)
                calls = [replace(first, answer=answer) for answer in answers] + calls
            if call["cause"]:
                cut_off[about].append(calls[0])
            else:
                self._by_subject[about] += calls

    def writing(self, variant: Variant, tree: Tree, entries: Mapping[str, str]) -> AnsweredCall | None:
        """The call whose answer is the variant; None if no model was asked for it. `entries`: the sources of
        the library's kernels by id."""
        subject, start = f"idea {variant.idea}", variant.parent
        if variant.repairs:
            subject, start = f"variant {variant.repairs}", variant.repairs
        parent = tree.variants.get(start)
        seed = parent.kernel.source if parent else entries.get(start, "")
        for call in self._by_subject.get(subject, ()):
            try:
                kernels = read_kernels(call.answer, seed, MOST_VARIANTS)
                if any(each.id == variant.written.id for each in kernels):
                    return call
            except ValueError:
                continue
        return None
