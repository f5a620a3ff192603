"""What the measurements say, in words for a model: each kernel's figures with their interval, what it gained
over its seed, why variants failed, and which mistakes were made on this problem. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evaluators.records.cases import in_lines
from evaluators.records.configurations import configuration_summary
from evaluators.records.diagnosis import Diagnosis
from evaluators.records.evaluation import Evaluation, Status, passes_in_words, share_text
from evaluators.records.resources import resource_summary
from search.records.ranking import Ranking
from search.records.tree import LIBRARY, Category, Outcome, Reflection, Seed, Variant, fastest

TRIED_CHARACTERS, SUMMARY_CHARACTERS, MISTAKES_CHARACTERS = 12_000, 4_000, 3_000
REFLECTIONS_CHARACTERS = 6_000
"""The most characters of each section. Ideas that gained nothing are left out first, the oldest of them
before others; then other ideas, the oldest first. The lineage of the seed, the best ideas and the last round
are kept as long as there is room."""
BEST_KEPT = 5
FEWEST_TIMES = 3
"""With fewer measurements, nothing is said about how much they differ."""
MISTAKES = frozenset(Status) - {
    Status.CORRECT,
    Status.DECLINED,
    Status.OUTPACED,
    Status.UNFIT_REFERENCE,
    Status.INFRASTRUCTURE_ERROR,
}
NUMBER = re.compile(r"\d[\d.,]*(e[+-]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class Gain:
    """How many times as fast as its seed a kernel is, with the 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        figures = f"{self.value:.3g}x [{self.low:.3g}, {self.high:.3g}]"
        if self.low > 1:
            return f"faster than its seed: {figures}"
        if self.high < 1:
            return f"slower than its seed: {figures}"
        return f"no difference from its seed beyond the error: {figures}"


class MeasuredHistory:
    """The evidence of the ideas in `history`, whose seeds are variants in it or among `entries`. A kernel has
    one figure everywhere: its last comparison with other kernels if there was one, otherwise its own
    verdict. `diagnoses` are by kernel id; `reflections` are those of earlier rounds, oldest first."""

    def __init__(
        self,
        history: Sequence[Outcome] = (),
        entries: Sequence[Seed] = (),
        ranking: Ranking | None = None,
        diagnoses: Mapping[str, Diagnosis] | None = None,
        reflections: Sequence[Reflection] = (),
    ) -> None:
        self._history, self._ranking = history, ranking or Ranking()
        self._diagnoses = diagnoses or {}
        self._reflections = reflections
        self._entries = {entry.id: entry for entry in entries}
        self._variants = {each.id: each for outcome in history for each in outcome.variants}
        self._ideas = {outcome.idea.id: outcome.idea for outcome in history}
        self._taken_over = {
            outcome.idea.parent: outcome.best for outcome in history if outcome.idea.proposer == LIBRARY
        }

    def measured(self, kernel: Seed | Variant) -> Evaluation | None:
        """The evaluation that counts for a kernel."""
        own = kernel.evaluation
        if isinstance(kernel, Seed) and (taken := self._taken_over.get(kernel.id)) is not None:
            own = taken.evaluation  # this search's own measurement of a library entry
        return None if own is None else self._ranking.evaluation(kernel.kernel.id, own)

    def diagnosis(self, seed: Seed) -> str:
        """What the kernel's profile means; "" if it was not profiled, or could not be."""
        found = self._diagnoses.get(seed.kernel.id)
        return found.text() if found is not None and found.reached else ""

    def gain(self, variant: Variant) -> Gain | None:
        """What a correct variant gained over its seed: measured side by side if the two were compared,
        otherwise from both speedups over eager. None for one that starts from the reference."""
        parent = self._variants.get(variant.parent) or self._entries.get(variant.parent)
        if parent is None:
            return None
        if together := self._ranking.speedup(variant.kernel.id, parent.kernel.id):
            return Gain(value=together[0], low=together[1], high=together[2])
        verdict = self._variants.get(variant.id, variant).evaluation
        for paired in verdict.paired if verdict is not None else ():
            if paired.over == parent.kernel.id:
                return Gain(value=paired.speedup, low=paired.low, high=paired.high)
        timings = [each.timing if (each := self.measured(kernel)) else None for kernel in (variant, parent)]
        if (own := timings[0]) is None or (its := timings[1]) is None:
            return None
        return Gain(
            value=own.speedup / its.speedup,
            low=own.speedup_low / its.speedup_high,
            high=own.speedup_high / its.speedup_low if its.speedup_low > 0 else float("inf"),
        )

    def figures(self, kernel: Seed | Variant) -> str:
        """The time and the speedup with its interval of a correct kernel; otherwise why it failed. Then the
        resources of its compiled functions, as far as they are known."""
        found = self.measured(kernel)
        if found is None:
            return "not measured yet"
        more = [resource_summary(found.resources)]
        if (timing := found.timing) is None:
            time = f" {found.quick.timing.kernel_ms:.4g} ms," if found.quick else ""
            figures = f"{found.status.value}:{time} {found.cause}" if found.cause else found.status.value
        else:
            interval = f"[{timing.speedup_low:.3g}, {timing.speedup_high:.3g}]"
            figures = f"{timing.kernel_ms:.4g} ms, {timing.speedup:.3g}x as fast as eager {interval}"
            more.append(configuration_summary(found.configurations))
        known = "; ".join(filter(None, more))
        return f"{figures} ({known})" if known else figures

    def result(self, variant: Variant) -> str:
        """The figures of a variant, what a correct one gained over its seed, and what its profile found."""
        gain = str(self.gain(variant) or "") if variant.timing else ""
        limits = f"profile: {found}" if (found := self._bottlenecks(variant)) else ""
        return "; ".join(filter(None, (self.figures(variant), gain, limits)))

    def verdict(self, seed: Seed) -> str:
        """All that is known of a seed's speed and accuracy."""
        found = self.measured(seed)
        if not seed.drop_in:
            return "It solves a different problem."
        if found is None:
            return "It has not been measured on this machine."
        if (timing := found.timing) is None:
            return f"It failed: {self.figures(seed)}."
        words = [f"It takes {self.figures(seed)}; eager takes {timing.eager_ms:.4g} ms"]
        if timing.compile_ms is not None:
            words.append(f", torch.compile {timing.compile_ms:.4g} ms")
        words.append(".")
        if found.passes is not None:
            words.append(f" {passes_in_words(found.passes, timing)}")
        if found.cases:
            words.insert(0, "Over all cases, as weighted geometric means: ")
            words += ["\n\n", *(f"- {line}\n" for line in in_lines(found.cases)), "\n"]
        if found.roofline is not None and (share := found.roofline_share) is not None:
            words.append(f" That is {share_text(share)} of the roofline ({found.roofline.bound}-bound).")
        if (right := found.correctness) is not None and right.statistic is None:
            errors = f"{right.normwise_error:.2g}, eager's {right.eager_error:.2g}"
            words.append(f" Its error against float64 is {errors}.")
        return "".join(words)

    def lineage(self, seed: Seed) -> list[str]:
        """The ideas that led to a seed, oldest first, each with what it gave."""
        line = self._line(seed)
        steps = [f"{self._ideas[each.idea].text} → {self.figures(each)}" for each in line]
        if line and (entry := self._entries.get(line[0].parent)):
            steps.insert(0, f"the library's `{entry.id}` → {self.figures(entry)}")
        return steps

    def tried(self, seed: Seed | None, *, summary: bool = False) -> str:
        """Every idea with its variants, oldest first, as far as there is room. States what was left out."""
        room = SUMMARY_CHARACTERS if summary else TRIED_CHARACTERS
        blocks = {outcome.idea.id: self._block(outcome) for outcome in self._history}
        kept: set[str] = set()
        for outcome in self._by_importance(seed):
            if (room := room - len(blocks[outcome.idea.id])) < 0:
                break
            kept.add(outcome.idea.id)
        lines = self._by_category() if summary else []
        lines += [blocks[each.idea.id] for each in self._history if each.idea.id in kept]
        if left_out := [each for each in self._history if each.idea.id not in kept]:
            failed = sum(each.best is None for each in left_out)
            counts = f"{len(left_out)} more ideas are left out: {failed} without a correct kernel"
            lines.append(f"- {counts}, the others with no gain worth building on.")
        return "\n".join(lines)

    def noise(self) -> str:
        """How far eager's time differed between the measurements of this run; "" if there are too few."""
        own = {each.kernel.id: each.timing.eager_ms for each in self._variants.values() if each.timing}
        if len(own) < FEWEST_TIMES:
            return ""
        low, high = min(own.values()), max(own.values())
        return (
            f"In the {len(own)} measurements so far, eager took {low:.4g} to {high:.4g} ms: times of "
            "different measurements differ by this much, speedups by less."
        )

    def reflections(self) -> list[str]:
        """What models concluded from earlier rounds, oldest first; the latest as far as there is room."""
        lines = {str(each.round): f"Round {each.round}: {each.text}" for each in reversed(self._reflections)}
        return [line for line in reversed(share_room(lines, REFLECTIONS_CHARACTERS).values()) if line]

    def hypotheses(self, round: int) -> list[str]:
        """The ideas of a round, each with its prediction and what was measured, as far as there is room."""
        blocks = {
            each.idea.id: self._block(each, predictions=True)
            for each in self._history
            if each.idea.round == round and each.idea.proposer != LIBRARY
        }
        return [block for block in share_room(blocks, TRIED_CHARACTERS).values() if block]

    def mistakes(self) -> list[str]:
        """Why kernels failed so far, each reason once, the most frequent first."""
        groups: defaultdict[tuple[Status, str], list[Variant]] = defaultdict(list)
        for variant in self._variants.values():
            found = variant.evaluation
            if found is not None and found.status in MISTAKES:
                groups[found.status, NUMBER.sub("#", found.cause)[:120]].append(variant)
        lines, room = [], MISTAKES_CHARACTERS
        for (status, _), variants in sorted(groups.items(), key=lambda each: -len(each[1])):
            assert variants[-1].evaluation is not None
            count = f", {len(variants)} kernels" if len(variants) > 1 else ""
            line = f"{status.value}{count}: {variants[-1].evaluation.cause}"
            if (room := room - len(line)) < 0:
                break
            lines.append(line)
        return lines

    def _line(self, seed: Seed | None) -> list[Variant]:
        """The variants that led to a seed, oldest first."""
        line: list[Variant] = []
        variant = self._variants.get(seed.id) if seed else None
        while variant is not None:
            line.insert(0, variant)
            variant = self._variants.get(variant.parent)
        return line

    def _block(self, outcome: Outcome, *, predictions: bool = False) -> str:
        """An idea and, below it, its predictions, if wanted, and each of its variants."""
        idea = outcome.idea
        start = "the reference" if not idea.parent else f"`{idea.parent}`"
        expected = f" Expected: {idea.expected}" if idea.expected else ""
        lines = [f"- Round {idea.round}, {idea.category.value}, from {start}: {idea.text}{expected}"]
        if predictions and idea.predicted_gain:
            lines.append(f"  - predicted: {idea.predicted_gain:g} times as fast as its seed")
        if predictions and idea.refuted_by:
            lines.append(f"  - refuted by: {idea.refuted_by}")
        if predictions and idea.variant_plans:
            lines.append("  - its variants were to differ in this: " + "; ".join(idea.variant_plans))
        for number, variant in enumerate(outcome.variants, 1):
            what = f" (repair of `{variant.repairs}`)" if variant.repairs else ""
            lines.append(f"  - variant {number}{what} `{variant.id}`: {self.result(variant)}")
        if not outcome.variants:
            lines.append("  - not evaluated yet")
        return "\n".join(lines)

    def _bottlenecks(self, variant: Variant) -> str:
        """What the kernel's profile found, by name; "" without a profile."""
        found = self._diagnoses.get(variant.kernel.id)
        return ", ".join(dict.fromkeys(each.name for each in found.findings)) if found else ""

    def _by_importance(self, seed: Seed | None) -> Iterable[Outcome]:
        """The outcomes in the order in which they are given room."""
        by_idea = {outcome.idea.id: outcome for outcome in self._history}
        best = fastest((each.best for each in self._history if each.best), BEST_KEPT, self._ranking)
        last = max((each.idea.round for each in self._history), default=0)
        newest = list(reversed(self._history))
        order = [each.idea for each in (*reversed(self._line(seed)), *best)]
        order += [each.idea.id for each in newest if each.idea.round == last]
        order += [each.idea.id for each in newest if self._helped(each)]
        order += [each.idea.id for each in newest]
        return (by_idea[id] for id in dict.fromkeys(order) if id in by_idea)

    def _helped(self, outcome: Outcome) -> bool:
        """Whether the idea's best kernel is faster than its seed beyond the error."""
        if outcome.best is None or (timing := outcome.best.timing) is None:
            return False
        gain = self.gain(outcome.best)
        return (gain.low if gain else timing.speedup_low) > 1

    def _by_category(self) -> list[str]:
        counts = Counter(outcome.idea.category for outcome in self._history)
        helped = Counter(each.idea.category for each in self._history if self._helped(each))
        correct = Counter(each.idea.category for each in self._history if each.best is not None)
        return [
            f"- {each.value}: {counts[each]} ideas, {correct[each]} with a correct kernel, "
            f"{helped[each]} faster than before"
            for each in Category
            if counts[each]
        ]


def share_room(texts: Mapping[str, str], room: int) -> dict[str, str]:
    """Texts by name with at most `room` characters together: the last ones are left out, as ""."""
    kept = {}
    for name, text in texts.items():
        kept[name] = text if len(text) <= room else ""
        room -= len(kept[name])
    return kept
