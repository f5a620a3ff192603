"""The workbench of one expansion: the possible ideas for a parent, and the kernels they could still write."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from search.proposers.playbook.move import Knob, Knobs, Move, Template
from search.proposers.playbook.plan import CROSS_OVER, NAIVE, RESTART, RETUNE, TOGETHER, Draft, Plan
from search.proposers.playbook.templates.scaffold import read_stamp, without_stamp
from search.proposers.playbook.workload import Workload
from search.records.tree import Category, Outcome, Seed

ATTEMPTS = 200
"""Random settings that are drawn to find a new one."""
RESTARTS = 6
"""Fresh starts that are drawn per expansion."""
DONORS = 5
"""Kernels of the history, best first, whose knobs a cross-over may take."""


class Bench:
    """The parent's knobs and everything tried before."""

    def __init__(
        self, workload: Workload, template: Template, history: Sequence[Outcome], seed: Seed | None
    ) -> None:
        self._workload, self._template, self._history = workload, template, history
        self._moves = {move.name: move for move in template.moves}
        known = None if seed is None else knobs_of(workload, template, seed.kernel.source)
        self._knobs: Knobs = template.naive if known is None else known
        self._from_reference = known is None
        plans = [(outcome, Plan.from_json(outcome.idea.plan)) for outcome in history]
        self._plans = [(outcome, plan) for outcome, plan in plans if plan is not None]
        self._bodies: dict[frozenset[tuple[str, Knob]], str] = {}
        parent = seed.id if seed else ""
        self._texts = {outcome.idea.text for outcome in history if outcome.idea.parent == parent}
        self._states = {plan.state for _, plan in self._plans}
        self._taken = self._written()

    def drafts(self, rng: random.Random) -> list[Draft]:
        """All ideas for this parent, including those tried before."""
        if self._from_reference:
            single = [self._draft(self._knobs, move) for move in self._fitting(self._knobs)]
            together = self._together() if self._workload.signatures else ()
            return [self._naive(), *together, *single, *self._pairs()]
        moves = [self._draft(self._knobs, move) for move in self._fitting(self._knobs)]
        return [*moves, *self._retunings(rng), *self._cross_overs(rng), *self._restarts(rng)]

    def plan(self, draft: Draft, variants: int, rng: random.Random) -> Plan | None:
        """A plan of the draft with up to `variants` new settings; None if it was tried or has nothing new.

        The settings of the plan count as tried from then on.
        """
        plan = Plan(
            language=self._template.language,
            moves=draft.moves,
            knobs=draft.knobs,
            opens=tuple(sorted(draft.values)),
        )
        if plan.state in self._states or draft.text in self._texts:
            return None
        settings: list[Knobs] = []
        for knobs in self._settings(draft, rng):
            if len(settings) == variants:
                break
            if self._take(knobs):
                settings.append(knobs)
        if not settings:
            return None
        self._states.add(plan.state)
        self._texts.add(draft.text)
        changes = [{k: v for k, v in knobs.items() if draft.knobs[k] != v} for knobs in settings]
        return replace(plan, variants=tuple(changes))

    def _valid(self, knobs: Knobs) -> bool:
        return self._template.valid(self._workload, knobs)

    def _body(self, knobs: Knobs) -> str:
        key = frozenset(knobs.items())
        if key not in self._bodies:
            self._bodies[key] = without_stamp(self._template.render(self._workload, knobs))
        return self._bodies[key]

    def _written(self) -> set[str]:
        """The bodies of all kernels of the history, including planned ones."""
        variants = [variant for outcome in self._history for variant in outcome.variants]
        bodies = {without_stamp(variant.kernel.source) for variant in variants}
        for outcome, plan in self._plans:
            if not outcome.variants and plan.language == self._template.language:
                bodies |= {self._body(knobs) for knobs in plan.settings()}
        return bodies

    def _take(self, knobs: Knobs) -> bool:
        """Claims a setting; False if it is invalid or its kernel exists already."""
        if not self._valid(knobs):
            return False
        body = self._body(knobs)
        if body in self._taken:
            return False
        self._taken.add(body)
        return True

    def _fitting(self, knobs: Knobs) -> list[Move]:
        return [move for move in self._template.moves if move.fits(self._workload, knobs)]

    def _naive(self) -> Draft:
        text = (
            f"Translate the reference directly: plain loops for {self._template.op}, one operation after the "
            "other, as the baseline for every later idea."
        )
        category = Category.CONTROL_FLOW
        return Draft(moves=(NAIVE,), text=text, category=category, knobs=self._template.naive, values={})

    def _draft(self, knobs: Knobs, move: Move) -> Draft:
        fixed = {**knobs, **move.sets}
        text = move.text + _list_values("Values", move.varies)
        return Draft(moves=(move.name,), text=text, category=move.category, knobs=fixed, values=move.varies)

    def _together(self) -> Iterator[Draft]:
        """All moves that fit, one after the other, the highest gain first, except those of the category
        precision. A search over many operators has few evaluations for each, and this gives each a good
        kernel early."""
        knobs: Knobs = self._template.naive
        path: list[Move] = []
        safe = [
            each for each in self._template.moves if each.gain > 1 and each.category is not Category.PRECISION
        ]
        while fitting := [each for each in safe if each.fits(self._workload, knobs) and _keeps(path, each)]:
            move = max(fitting, key=lambda each: each.gain)
            safe.remove(move)
            after = {**knobs, **_preferred(move.varies), **move.sets}
            if self._valid(after):
                path.append(move)
                knobs = after
        if len(path) > 2:
            text = f"Combine everything that usually pays off: {_listed([each.name for each in path])}."
            yield Draft(moves=(TOGETHER,), text=text, category=path[0].category, knobs=knobs, values={})

    def _pairs(self) -> Iterator[Draft]:
        """Pairs of moves; the second may build on the first."""
        for first in self._fitting(self._knobs):
            middle = {**self._knobs, **_preferred(first.varies), **first.sets}
            for second in self._fitting(middle):
                if second.name == first.name or not self._adds(first, second):
                    continue
                values = {**first.varies, **second.varies}
                text = f"{first.text} Together with it: {second.text}" + _list_values("Values", values)
                yield Draft(
                    moves=(first.name, second.name),
                    text=text,
                    category=first.category if first.gain >= second.gain else second.category,
                    knobs={**self._knobs, **first.sets, **second.sets},
                    values={knob: choices for knob, choices in values.items() if knob not in second.sets},
                )

    def _adds(self, first: Move, second: Move) -> bool:
        """Whether the second move keeps the first's knobs, and this is not the same pair in the other
        order."""
        undone = any(first.sets.get(knob, value) != value for knob, value in second.sets.items())
        order = list(self._moves)
        either = second.fits(self._workload, self._knobs)
        return not undone and not (either and order.index(second.name) < order.index(first.name))

    def _domain(self) -> dict[str, tuple[Knob, ...]]:
        """The knobs that some move leaves open, with all known values, sorted."""
        open_ = {knob for move in self._template.moves for knob in move.varies}
        values = values_of(self._template)
        return {knob: tuple(sorted(values[knob], key=_rank)) for knob in sorted(open_)}

    def _neighbours(self, knobs: Knobs) -> dict[str, tuple[Knob, ...]]:
        """By knob the values next to the current one, nearest first: up to two on each side, or all other
        texts."""
        near = {}
        for knob, values in self._domain().items():
            if knobs[knob] not in values:
                continue
            here = values.index(knobs[knob])
            order = sorted(range(len(values)), key=lambda place: (abs(place - here), place))
            reach = len(values) if isinstance(knobs[knob], str) else 2
            near[knob] = tuple(values[place] for place in order if 0 < abs(place - here) <= reach)
        return {knob: values for knob, values in near.items() if self._matters(knobs, knob, values)}

    def _matters(self, knobs: Knobs, knob: str, values: Sequence[Knob]) -> bool:
        """Whether one of the values changes the kernel."""
        changed = [{**knobs, knob: value} for value in values]
        valid = [each for each in changed if self._valid(each)]
        return any(self._body(each) != self._body(knobs) for each in valid)

    def _retunings(self, rng: random.Random) -> Iterator[Draft]:
        """Drafts that open two or three knobs around the parent's values."""
        near = self._neighbours(self._knobs)
        names = [group for size in (2, 3) for group in itertools.combinations(sorted(near), size)]
        names = names or [(knob,) for knob in sorted(near)]
        for group in rng.sample(names, min(len(names), 2 * len(near) + 2)):
            values = {knob: (self._knobs[knob], *near[knob]) for knob in group}
            now = _listed([f"{knob} = {self._knobs[knob]}" for knob in group])
            text = (
                f"Retune {_listed(group)} around {now}: the best values depend on each other and on the "
                "steps taken after they were chosen."
            ) + _list_values("Nearby values", {knob: near[knob] for knob in group})
            category = next(move.category for move in self._template.moves if group[0] in move.varies)
            yield Draft(moves=(RETUNE,), text=text, category=category, knobs=self._knobs, values=values)

    def _cross_overs(self, rng: random.Random) -> Iterator[Draft]:
        """Drafts that take some knobs from another fast kernel."""
        best = [outcome.best for outcome in self._history if outcome.best and outcome.best.evaluation]
        speed = {v.id: v.evaluation.speedup for v in best if v.evaluation}
        for donor in sorted(best, key=lambda v: (-speed[v.id], v.id))[:DONORS]:
            theirs = knobs_of(self._workload, self._template, donor.kernel.source) or self._knobs
            differing = sorted(knob for knob in theirs if theirs[knob] != self._knobs[knob])
            if len(differing) < 2:
                continue
            taken = sorted(rng.sample(differing, rng.randint(1, len(differing) - 1)))
            knobs = {**self._knobs, **{knob: theirs[knob] for knob in taken}}
            if not self._valid(knobs):
                continue
            values = _listed([f"{knob} = {theirs[knob]}" for knob in taken])
            text = (
                f"Take {values} from another fast kernel of this search ({speed[donor.id]:.2f} times eager) "
                "and keep the rest: the two may add up."
            )
            category = self._category_of(taken)
            yield Draft(moves=(CROSS_OVER,), text=text, category=category, knobs=knobs, values={})

    def _restarts(self, rng: random.Random) -> Iterator[Draft]:
        """Drafts of several random moves from the naive kernel: a way out of a local optimum."""
        for _ in range(RESTARTS):
            knobs: Knobs = self._template.naive
            values: dict[str, tuple[Knob, ...]] = {}
            path: list[Move] = []
            for _ in range(rng.randint(3, 6)):
                fitting = [m for m in self._fitting({**knobs, **_preferred(values)}) if m not in path]
                if not fitting:
                    break
                move = rng.choice(fitting)
                path.append(move)
                knobs = {**knobs, **move.sets}
                values = {k: v for k, v in values.items() if k not in move.sets} | dict(move.varies)
            if len(path) < 2:
                continue
            text = (
                f"Start over from the reference and combine other steps: {_listed([m.name for m in path])}. "
                "The neighbours of the best kernel have been tried; another order of steps may lead past it."
            ) + _list_values("Values", values)
            category = max(path, key=lambda move: move.gain).category
            yield Draft(moves=(RESTART,), text=text, category=category, knobs=knobs, values=values)

    def _category_of(self, knobs: Sequence[str]) -> Category:
        """The category of the first move that changes one of the knobs."""
        for move in self._template.moves:
            if any(knob in move.sets or knob in move.varies for knob in knobs):
                return move.category
        return Category.COMPUTE

    def _settings(self, draft: Draft, rng: random.Random) -> Iterator[Knobs]:
        """Settings of a draft's open knobs: the preferred one, then the others in random order, then settings
        with small changes of further knobs."""
        combinations = [
            {**draft.knobs, **dict(zip(draft.values, chosen, strict=True))}
            for chosen in itertools.product(*draft.values.values())
        ]
        valid = [knobs for knobs in combinations if self._valid(knobs)]
        yield from valid[:1]
        yield from rng.sample(valid[1:], len(valid) - 1) if valid else ()
        if draft.moves == (NAIVE,) or not valid:
            return
        near = self._neighbours(valid[0])
        for _ in range(ATTEMPTS if near else 0):
            knobs = dict(rng.choice(valid))
            for knob in rng.sample(sorted(near), min(len(near), rng.randint(1, 2))):
                knobs[knob] = rng.choice(near[knob])
            yield knobs


def knobs_of(workload: Workload, template: Template, source: str) -> Knobs | None:
    """The knobs of a kernel that the template rendered, now or before it had all its knobs; None for any
    other kernel."""
    found = read_stamp(source)
    if found is None or found[:2] != (template.op, template.language):
        return None
    knobs, values = {**template.naive, **found[2]}, values_of(template)
    ours = set(knobs) == set(values) and all(_known(value, values[knob]) for knob, value in knobs.items())
    return knobs if ours and template.valid(workload, knobs) else None


def values_of(template: Template) -> dict[str, set[Knob]]:
    """By knob all values in the template's moves."""
    values = {knob: {value} for knob, value in template.naive.items()}
    for move in template.moves:
        for knob, value in move.sets.items():
            values[knob].add(value)
        for knob, several in move.varies.items():
            values[knob].update(several)
    return values


def _known(value: Knob, values: set[Knob]) -> bool:
    """Whether a knob may have this value. Any integer may replace another one."""
    alike = {type(each) for each in values} == {type(value)}
    return alike and (value in values or type(value) is int)


def _rank(value: Knob) -> tuple[str, Knob]:
    return type(value).__name__, value


def _keeps(path: Sequence[Move], move: Move) -> bool:
    """Whether a move keeps the knobs that the moves before it set."""
    undone = any(each.sets.get(knob, value) != value for each in path for knob, value in move.sets.items())
    return not undone


def _preferred(varies: Mapping[str, tuple[Knob, ...]]) -> dict[str, Knob]:
    return {knob: values[0] for knob, values in varies.items()}


def _list_values(label: str, values: Mapping[str, Sequence[Knob]]) -> str:
    """For example ` Values: a = 1, 2; b = 3.`; empty without values."""
    parts = [f"{knob} = {', '.join(map(str, choices))}" for knob, choices in values.items()]
    return f" {label}: {'; '.join(parts)}." if parts else ""


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
