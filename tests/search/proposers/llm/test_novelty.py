from __future__ import annotations

import pytest

from search.proposers.llm.novelty import comparable, repeated
from search.records.tree import Category, Idea

IDEA = "Stage the input tile in shared memory so that each value is read from global memory once."


@pytest.mark.parametrize(
    "text",
    [
        IDEA,
        IDEA.upper(),
        IDEA.replace(".", "!").replace(" ", "  "),
        "Stage the input tiles in shared memory, so that each value is read once from global memory",
        "So that each value is read from global memory once, stage the input tile in shared memory.",
    ],
)
def test_other_words_for_the_same(text: str) -> None:
    assert repeated(text, ["Unroll the inner loop.", IDEA])


@pytest.mark.parametrize(
    "text",
    [
        "Stage the weights in registers so that each warp reads them from shared memory once.",
        "Use asynchronous copies to overlap loads of the next tile with the products of this one.",
        "Round the operands to bfloat16 and multiply them on the tensor cores.",
    ],
)
def test_another_idea(text: str) -> None:
    assert not repeated(text, [IDEA])


def test_numbers_make_a_difference() -> None:
    assert repeated("Use tiles of 64 x 64.", ["use tiles of 64 x 64"])
    assert not repeated("Use tiles of 64 x 64.", ["Use tiles of 128 x 64."])


def test_what_a_seed_has_in_it_counts_and_what_others_have_does_not() -> None:
    def idea(text: str, parent: str) -> Idea:
        return Idea(text=text, category=Category.MEMORY, parent=parent, round=1, proposer="x")

    ideas = [idea("on the seed", "seed"), idea("in the seed", ""), idea("elsewhere", "other")]
    assert comparable(ideas, "seed", [ideas[1].id]) == ["on the seed", "in the seed"]
