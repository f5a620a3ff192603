"""Dataclasses survive the way to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

import pytest

from evaluators.base.json_record import JsonRecord


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Plain:
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Leaf(JsonRecord):
    number: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Older forms say `n`."""
        return super().from_json({"number": data.get("n", data.get("number"))})


@dataclass(frozen=True, kw_only=True)
class Tree(JsonRecord):
    colour: Colour
    leaf: Leaf | None = None
    leaves: tuple[Leaf, ...] = ()
    texts: Sequence[str] = ()
    plain: Sequence[Plain] = ()
    facts: Mapping[str, float] = field(default_factory=dict)


TREE = Tree(
    colour=Colour.RED,
    leaf=Leaf(1),
    leaves=(Leaf(2), Leaf(3)),
    texts=("a", "b"),
    plain=(Plain((1, 2)),),
    facts={"x": 0.5},
)


@pytest.mark.parametrize("tree", [TREE, Tree(colour=Colour.RED)])
def test_json_and_back_gives_an_equal_record(tree: Tree) -> None:
    restored = Tree.from_json(json.loads(json.dumps(tree.to_json())))
    assert restored == tree
    assert isinstance(restored.colour, Colour) and isinstance(restored.texts, tuple)


def test_a_nested_record_reads_its_older_form() -> None:
    assert Tree.from_json({"colour": "red", "leaf": {"n": 7}}).leaf == Leaf(7)


@pytest.mark.parametrize("data", [{"colour": "blue"}, {}, {"colour": "red", "size": 1}])
def test_other_json_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Tree.from_json(data)
