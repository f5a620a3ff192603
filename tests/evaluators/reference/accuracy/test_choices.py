"""Equal elements: which of them is chosen is left to a kernel, what follows from the choice is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from evaluators.reference.answer import Draw
from evaluators.reference.inputs.input_distributions import Distribution
from evaluators.reference.reference_model import ReferenceModel
from tests.evaluators.references import session_of

Outputs = list[torch.Tensor]


def route(logits: torch.Tensor, chosen: int = 4) -> Outputs:
    """The weights and numbers of the most likely experts of each token."""
    weights, experts = torch.topk(torch.softmax(logits, -1), chosen, -1)
    return [weights / weights.sum(-1, keepdim=True), experts]


def lowest_first(logits: torch.Tensor, chosen: int = 4) -> Outputs:
    """The same; of equal ones the first."""
    values, experts = torch.softmax(logits, -1).sort(dim=-1, descending=True, stable=True)
    weights = values[..., :chosen]
    return [weights / weights.sum(-1, keepdim=True), experts[..., :chosen].clone()]


def highest_first(logits: torch.Tensor) -> Outputs:
    weights, experts = lowest_first(logits.flip(-1))
    return [weights, logits.shape[-1] - 1 - experts]


def whole_numbers() -> torch.Tensor:
    return torch.randint(0, 3, (64, 32)).float()


def judged(session: ReferenceModel, kernel: Callable[[torch.Tensor], Outputs]) -> str:
    """What is wrong with a kernel on a drawn input; "" for nothing."""
    draw = Draw.fresh()
    (x,) = session.draw(draw.seed)
    return session.judge_draw(kernel(x), session.answer(draw), own=True).problem


@pytest.fixture
def session() -> ReferenceModel:
    found = session_of(lambda x: tuple(route(x)), lambda: [whole_numbers()])
    found.count_work()
    return found


@pytest.mark.parametrize("kernel", [route, lowest_first, highest_first])
def test_any_of_equal_elements_may_be_chosen(
    session: ReferenceModel, kernel: Callable[[torch.Tensor], Outputs]
) -> None:
    assert session.has_choices
    assert not judged(session, kernel)


def test_a_choice_is_judged_on_distributions_too(session: ReferenceModel) -> None:
    same = Distribution(name="shifted", floating=lambda tensor: tensor)
    session.accept(same, 0, session.compute_answer(same, 0))
    (x,) = session.draw(session.seed_on("shifted"), "shifted")
    assert not session.check_on(highest_first(x), "shifted").problem
    assert session.check_on(wrong_expert(x), "shifted").problem


def wrong_expert(x: torch.Tensor) -> Outputs:
    weights, experts = route(x)
    experts[5, 3] = x[5].argmin()
    return [weights, experts]


def expert_twice(x: torch.Tensor) -> Outputs:
    weights, experts = lowest_first(x)
    experts[7, 1] = experts[7, 0]
    return [weights, experts]


def beyond_the_end(x: torch.Tensor) -> Outputs:
    weights, experts = lowest_first(x)
    experts[0, 0] = x.shape[-1]
    return [weights, experts]


def weights_of_others(x: torch.Tensor) -> Outputs:
    weights, experts = highest_first(x)
    return [weights.roll(1, 0) * 1.01, experts]


@pytest.mark.parametrize("kernel", [wrong_expert, expert_twice, beyond_the_end, weights_of_others])
def test_a_wrong_choice_is_found(session: ReferenceModel, kernel: Callable[[torch.Tensor], Outputs]) -> None:
    assert judged(session, kernel)


def test_what_follows_from_a_choice_has_to_fit_it() -> None:
    """The values of the chosen experts, which differ although their scores are equal."""

    def pick(x: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = x.topk(1, -1).indices
        return numbers, table[numbers]

    session = session_of(pick, lambda: [whole_numbers(), torch.randn(32)])
    session.count_work()
    draw = Draw.fresh()
    x, table = session.draw(draw.seed)
    numbers = highest_first(x)[1][:, :1]
    answer = session.answer(draw)
    assert not session.judge_draw([numbers, table[numbers]], answer, own=True).problem
    assert session.judge_draw([numbers, pick(x, table)[1]], answer, own=True).problem


@pytest.mark.parametrize(
    "choose",
    [
        lambda x: x.sort(-1),
        lambda x: x.kthvalue(3, -1),
        lambda x: x.median(-1, keepdim=True),
        lambda x: (x.argsort(-1),),
    ],
)
def test_other_operators_that_choose(choose: Callable[[torch.Tensor], Outputs]) -> None:
    """A kernel that runs them on the flipped input breaks ties the other way."""
    session = session_of(lambda x: tuple(choose(x)), lambda: [whole_numbers()])
    session.count_work()

    def flipped(x: torch.Tensor) -> Outputs:
        *values, numbers = choose(x.flip(-1))
        return [*values, x.shape[-1] - 1 - numbers]

    def off_by_one(x: torch.Tensor) -> Outputs:
        *values, numbers = choose(x)
        return [*values, (numbers + 1) % x.shape[-1]]

    assert not judged(session, flipped)
    assert judged(session, off_by_one)


@pytest.mark.parametrize("choose", [lambda x: x.max(-1), lambda x: x.sort(dim=-1, stable=True)])
def test_documented_ties_are_kept(choose: Callable[[torch.Tensor], Outputs]) -> None:
    session = session_of(lambda x: tuple(choose(x)), lambda: [whole_numbers()])
    session.count_work()

    def flipped(x: torch.Tensor) -> Outputs:
        values, numbers = choose(x.flip(-1))
        return [values, x.shape[-1] - 1 - numbers]

    assert judged(session, flipped)
