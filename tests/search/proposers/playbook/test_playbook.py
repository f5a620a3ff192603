"""The playbook over simulated searches: a stand-in for the machine knows what each knob is worth."""

import asyncio
import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Kernel, Problem
from evaluators.reference.loading import load_problem
from kernel_library.catalogue.library import FolderLibrary
from search.proposers.playbook.plan import CROSS_OVER, NAIVE, RETUNE, TOGETHER, Plan
from search.proposers.playbook.playbook import LANGUAGES, Playbook
from search.proposers.playbook.templates import template_for
from search.proposers.playbook.templates.scaffold import read_stamp, without_stamp
from search.records.tree import Category, Expansion, Idea, Outcome, Seed, Tree, Variant
from tests.search.proposers.playbook.operator_calls import CALLS, workload
from tests.search.proposers.playbook.operator_calls import problem as operator_problem

CONV = load_problem("level2/conv2d_relu_maxpool", sizes={"batch": 2})
PROBLEMS = {
    "conv2d": CONV,
    "matmul": load_problem("level1/matmul", sizes={"size": 768}),
    "softmax": load_problem("level1/softmax", sizes={"batch": 128}, tolerance="strict"),
    "layernorm": load_problem("level1/layernorm", sizes={"height": 64, "width": 64}),
}


def chance(*parts: object) -> float:
    """A number in [0, 1) that depends on the parts alone."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:8], 16) / 16**8


def verdict(kernel: Kernel) -> Evaluation:
    """Every knob value that is not naive is worth something, more or less; some kernels fail."""
    stamp = read_stamp(kernel.source)
    assert stamp is not None
    op, language, knobs = stamp
    template = template_for(op, language)
    assert template is not None
    changed = [(knob, value) for knob, value in sorted(knobs.items()) if value != template.naive[knob]]
    if changed and chance(changed, "fails") < 0.1:
        return Evaluation(status=Status.COMPILE_ERROR, log="no")
    return timed(100 * math.prod(0.5 + 0.6 * chance(each) for each in changed))


def timed(kernel_ms: float) -> Evaluation:
    speedup = 10 / kernel_ms
    timing = Timing(
        kernel_ms=kernel_ms, eager_ms=10, speedup=speedup, speedup_low=speedup, speedup_high=speedup
    )
    return Evaluation(status=Status.CORRECT, timing=timing)


def propose(
    problem: Problem,
    seed: Seed | None = None,
    history: Sequence[Outcome] = (),
    *,
    ideas: int = 8,
    variants: int = 3,
    rng: int = 0,
    noise: float = 0.25,
) -> list[Idea]:
    expansion = Expansion(seed=seed, ideas=ideas, variants=variants, round=1)
    return asyncio.run(Playbook(noise=noise).propose(problem, expansion, history, random.Random(rng)))


def implement(problem: Problem, idea: Idea, n: int = 3, rng: int = 0) -> list[Kernel]:
    async def all_of_them() -> list[Kernel]:
        return [each async for each in Playbook().implement(problem, idea, None, n, [], random.Random(rng))]

    return asyncio.run(all_of_them())


def search(problem: Problem, *, rounds: int = 10, rng: int = 0, ideas: int = 4, variants: int = 3) -> Tree:
    """A greedy search: the best two kernels and the reference, then the best three."""
    tree, playbook = Tree(), Playbook()

    async def run() -> None:
        for number in range(1, rounds + 1):
            seeds: list[Seed | None] = [best.seed for best in tree.best(3)] or [None]
            so_far: list[Outcome] = []
            past = tree.history()
            for place, seed in enumerate(seeds):
                expansion = Expansion(seed=seed, ideas=ideas, variants=variants, round=number)
                draw = random.Random(f"{rng} {number} {place}")
                new = await playbook.propose(problem, expansion, [*past, *so_far], draw)
                assert len(new) <= ideas
                so_far += [Outcome(idea=idea, best=None, variants=()) for idea in new]
                for idea in new:
                    tree.add_idea(idea)
                    async for kernel in playbook.implement(problem, idea, seed, variants, [], draw):
                        variant = Variant(kernel=kernel, idea=idea.id, parent=idea.parent, round=number)
                        tree.add_variant(variant)
                        tree.evaluate(variant.id, verdict(kernel))
            tree.rounds_closed = number

    asyncio.run(run())
    return tree


def plan_of(idea: Idea) -> Plan:
    plan = Plan.from_json(idea.plan)
    assert plan is not None
    return plan


@pytest.fixture(scope="module", params=PROBLEMS)
def tree(request: pytest.FixtureRequest) -> Tree:
    return search(PROBLEMS[request.param])


@pytest.mark.slow
def test_no_kernel_is_written_twice(tree: Tree) -> None:
    bodies = [without_stamp(variant.kernel.source) for variant in tree.variants.values()]
    assert len(bodies) > 150
    assert len(set(bodies)) == len(bodies)


@pytest.mark.slow
def test_no_idea_is_had_twice(tree: Tree) -> None:
    texts = [(idea.parent, idea.text) for idea in tree.ideas.values()]
    assert len(set(texts)) == len(texts)
    states = [plan_of(idea).state for idea in tree.ideas.values()]
    assert len(set(states)) == len(states)


@pytest.mark.slow
def test_every_idea_has_variants_and_a_fitting_category(tree: Tree) -> None:
    for idea in tree.ideas.values():
        plan = plan_of(idea)
        assert tree.variants_of(idea.id)
        template = template_for(read_stamp(tree.variants_of(idea.id)[0].kernel.source)[0], "cpp")  # type: ignore[index]
        assert template is not None
        categories = {move.name: move.category for move in template.moves}
        own = {categories[name] for name in plan.moves if name in categories}
        assert idea.category in (own or set(Category))
        assert idea.text[0].isupper()
        assert idea.text.endswith(".")


@pytest.mark.slow
def test_later_rounds_retune_and_cross_over(tree: Tree) -> None:
    moves = {name for idea in tree.ideas.values() for name in plan_of(idea).moves}
    assert {NAIVE, RETUNE, CROSS_OVER} <= moves


@pytest.mark.slow
def test_variants_carry_out_their_plan(tree: Tree) -> None:
    for idea in tree.ideas.values():
        plan = plan_of(idea)
        for variant in tree.variants_of(idea.id):
            stamp = read_stamp(variant.kernel.source)
            assert stamp is not None
            assert stamp[2] in plan.settings()


@pytest.mark.slow
def test_equal_arguments_give_equal_searches() -> None:
    first, second, other = (search(CONV, rounds=3, rng=seed) for seed in (1, 1, 2))
    assert list(first.variants) == list(second.variants)
    assert list(first.ideas) == list(second.ideas)
    assert set(first.ideas) != set(other.ideas)


def test_first_ideas_are_the_naive_kernel_and_steps_from_it() -> None:
    ideas = propose(CONV, ideas=8)
    assert len(ideas) == 8
    assert plan_of(ideas[0]).moves == (NAIVE,)
    assert all(1 <= len(plan_of(idea).moves) <= 2 for idea in ideas)
    assert all(NAIVE not in plan_of(idea).moves for idea in ideas[1:])
    naive = implement(CONV, ideas[0])
    template = template_for("conv2d", "cpp")
    assert template is not None
    assert [read_stamp(kernel.source) for kernel in naive] == [("conv2d", "cpp", template.naive)]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("operator", ["aten.add.Tensor", "aten.sum.dim_IntList", "aten._softmax.default"])
def test_an_operators_search_begins_with_all_that_pays(operator: str, device: str) -> None:
    of = operator_problem(operator, CALLS[operator], device)
    template = template_for(workload(operator, CALLS[operator], device).op, LANGUAGES[device])
    assert template is not None
    first, second, *_ = map(plan_of, propose(of, ideas=4))
    assert (first.moves, second.moves) == ((TOGETHER,), (NAIVE,))
    changed = {knob for knob, value in first.knobs.items() if value != template.naive[knob]}
    assert len(changed) > 2 and "sums" not in changed, "what may make it wrong is an idea of its own"
    assert len(first.settings()) == 3, "and further settings of the same"


def test_one_round_does_not_repeat_one_move_throughout() -> None:
    moves = [name for idea in propose(CONV, ideas=8) for name in plan_of(idea).moves]
    assert max(moves.count(name) for name in moves) <= 5


def test_a_foreign_seed_is_treated_like_the_reference() -> None:
    foreign = Seed(id="theirs", kernel=Kernel(source="class ModelNew: ...", language="cpp"))
    ideas = propose(CONV, foreign)
    assert plan_of(ideas[0]).moves == (NAIVE,)
    assert {idea.parent for idea in ideas} == {"theirs"}


@pytest.mark.slow
def test_it_builds_on_kernels_whose_knobs_it_can_read(tmp_path: Path) -> None:
    playbook, conv = Playbook(), load_problem("level1/conv2d")
    own = implement(conv, propose(conv)[0])[0]
    assert playbook.extends(conv, own)
    assert not playbook.extends(PROBLEMS["matmul"], own)
    assert not playbook.extends(conv, Kernel(source="class ModelNew: ...", language="cpp"))
    shipped = {each.id: each.kernel for each in FolderLibrary(tmp_path).entries()}
    assert playbook.extends(replace(conv, device="cuda", precision="float16"), shipped["conv2d/triton"])
    assert not playbook.extends(conv, shipped["conv2d/cpp"])


@pytest.mark.slow
def test_seeds_of_another_operation_or_with_knobs_of_another_version_are_foreign() -> None:
    naive = implement(PROBLEMS["matmul"], propose(PROBLEMS["matmul"])[0])[0]
    assert plan_of(propose(CONV, Seed(id="matmul", kernel=naive))[0]).moves == (NAIVE,)
    own = implement(CONV, propose(CONV)[0])[0]
    for before, after in (("unroll", "unrolled"), ("scalar", "sideways"), ("-O2", "-O9")):
        old = Kernel(source=own.source.replace(f'"{before}"', f'"{after}"'), language="cpp")
        assert old != own
        assert plan_of(propose(CONV, Seed(id="old", kernel=old))[0]).moves == (NAIVE,)


@pytest.mark.slow
def test_implement_needs_the_record_alone() -> None:
    for idea in propose(CONV):
        record = json.loads(json.dumps(asdict(idea)))
        record.update(category=Category(record["category"]), known_ideas=tuple(record["known_ideas"]))
        restored = Idea(**record)
        assert restored.id == idea.id
        kernels = implement(CONV, idea, rng=5)
        assert implement(CONV, restored, rng=6) == kernels
        assert implement(CONV, idea, n=1) == kernels[:1]
        assert len({kernel.id for kernel in kernels}) == len(kernels)


def test_an_idea_that_another_proposer_left_in_the_run_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    idea = Idea(text="x", category=Category.MEMORY, parent="", round=1, proposer="llm")
    assert implement(CONV, idea) == []
    assert f"idea {idea.id} is dropped" in caplog.text


def test_nothing_for_what_is_not_recognised() -> None:
    source = CONV.source.replace("self.pool(self.relu(self.conv(x)))", "self.conv(x) * 2")
    assert propose(Problem(name="other", source=source)) == []


def outcome(idea: Idea, kernel_ms: float | None) -> Outcome:
    kernel = implement(CONV, idea)[0]
    evaluation = timed(kernel_ms) if kernel_ms else Evaluation(status=Status.INCORRECT)
    variant = Variant(kernel=kernel, idea=idea.id, parent=idea.parent, round=1, evaluation=evaluation)
    return Outcome(idea=idea, best=variant if kernel_ms else None, variants=(variant,))


@pytest.mark.slow
def test_moves_that_paid_come_earlier_and_moves_that_failed_later() -> None:
    ideas = propose(CONV, ideas=60, noise=0)
    naive, singles = (
        ideas[0],
        {plan_of(idea).moves[0]: idea for idea in ideas if len(plan_of(idea).moves) == 1},
    )
    threads, sizes = singles["threads"], singles["constant sizes"]
    base = outcome(threads, 50)
    assert base.best is not None
    seed = implement(CONV, singles["channels innermost"])[0]

    def place(of: str, history: Sequence[Outcome]) -> int:
        moves = [
            plan_of(idea).moves[0]
            for idea in propose(CONV, Seed(id="s", kernel=seed), history, ideas=60, noise=0)
        ]
        return moves.index(of)

    good = [outcome(naive, 100), outcome(threads, 10), outcome(sizes, 99)]
    bad = [outcome(naive, 100), outcome(threads, None), outcome(sizes, 10)]
    assert place("threads", good) < place("constant sizes", good)
    assert place("threads", bad) > place("constant sizes", bad)


def test_noise_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="noise"):
        Playbook(noise=-1)
