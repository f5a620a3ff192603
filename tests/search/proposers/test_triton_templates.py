"""The catalogue of the Triton templates is consistent: valid states, reachable moves, code that parses."""

from __future__ import annotations

import ast
import json
import random

import pytest

from search.proposers.playbook.move import Knob
from search.proposers.playbook.templates.scaffold import read_stamp, without_stamp
from search.proposers.playbook.workload import Workload
from tests.search.proposers.triton_workloads import conv2d, layernorm, matmul, softmax, template

SHIPPED = {
    "conv2d": conv2d(100, 3, 224, 224, 96, 11, 11, 4, 2),
    "conv2d_relu_maxpool": conv2d(100, 3, 224, 224, 96, 11, 11, 4, 2, epilogue=("relu", "maxpool")),
    "matmul": matmul(4096, 4096, 4096),
    "matmul_loose": matmul(4096, 4096, 4096, "float16", "tfloat32"),
    "softmax": softmax(4096, 65536),
    "softmax_short": softmax(4096, 8192),
    "layernorm": layernorm(16, 64 * 256 * 256),
    "layernorm_short": layernorm(8192, 4096),
}
"""The shipped problems, and sizes at which other moves apply."""


def walk(
    workload: Workload, seed: int, steps: int = 12
) -> list[tuple[str, dict[str, Knob], dict[str, Knob]]]:
    """Random moves from the naive kernel, as (move, knobs before, knobs after); only valid states."""
    rng = random.Random(seed)
    family = template(workload)
    knobs = dict(family.naive)
    path = []
    for _ in range(steps):
        move = rng.choice([move for move in family.moves if move.fits(workload, knobs)])
        after = {**knobs, **move.sets, **{knob: rng.choice(values) for knob, values in move.varies.items()}}
        if family.valid(workload, after):
            path.append((move.name, knobs, after))
            knobs = after
    return path


@pytest.mark.parametrize("name", SHIPPED)
def test_the_naive_kernel_is_valid_and_says_what_it_is(name: str) -> None:
    workload = SHIPPED[name]
    family = template(workload)
    assert family.valid(workload, family.naive)
    source = family.render(workload, family.naive)
    assert source.startswith("# ")
    assert read_stamp(source) == (workload.op, "triton", dict(family.naive))
    assert workload.constructor.splitlines()[-1:] == [] or workload.constructor.splitlines()[-1] in source


@pytest.mark.parametrize("name", SHIPPED)
def test_moves_name_known_knobs_and_values_of_the_right_type(name: str) -> None:
    family = template(SHIPPED[name])
    assert len({move.name for move in family.moves}) == len(family.moves)
    for move in family.moves:
        assert move.gain > 1.0
        assert move.sets or move.varies
        values = {**{knob: (value,) for knob, value in move.sets.items()}, **move.varies, **move.needs}
        for knob, several in values.items():
            assert knob in family.naive, (move.name, knob)
            assert all(type(value) is type(family.naive[knob]) for value in several), (move.name, knob)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_random_states_render_to_python(name: str) -> None:
    workload = SHIPPED[name]
    family = template(workload)
    states = {json.dumps(after, sort_keys=True) for seed in range(30) for _, _, after in walk(workload, seed)}
    assert len(states) > 20
    for state in sorted(states)[:150]:
        source = family.render(workload, json.loads(state))
        tree = ast.parse(source)
        names = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        assert names == ["ModelNew"]
        longest = max(len(line) for line in source.splitlines() if not line.startswith("# playbook"))
        assert longest <= 160
        assert source == family.render(workload, json.loads(state))


@pytest.mark.parametrize("op", ["conv2d", "matmul", "softmax", "layernorm"])
def test_every_move_is_reachable_and_changes_the_kernel(op: str) -> None:
    workloads = [workload for workload in SHIPPED.values() if workload.op == op]
    family = template(workloads[0])
    changed = set()
    for workload in workloads:
        for seed in range(60):
            for name, before, after in walk(workload, seed):
                if name in changed or before == after:
                    continue
                if without_stamp(family.render(workload, before)) != without_stamp(
                    family.render(workload, after)
                ):
                    changed.add(name)
    assert {move.name for move in family.moves} - changed == set()


BEST: dict[str, tuple[tuple[str, dict[str, Knob]], ...]] = {
    "conv2d": (
        ("implicit gemm, fp16", {"block_m": 128, "block_n": 128, "warps": 8}),
        ("space to depth, all channels", {"block_m": 128, "warps": 8, "stages": 3}),
        ("one preparing launch", {}),
    ),
    "conv2d_relu_maxpool": (
        ("implicit gemm, fp16", {"block_m": 128, "block_n": 128, "warps": 8}),
        ("space to depth, all channels", {"block_m": 128, "warps": 8, "stages": 3}),
        ("half intermediate", {}),
        ("one preparing launch", {}),
    ),
    "matmul": (
        ("split beforehand, float16", {"block_n": 128, "block_k": 64, "stages": 3, "warps": 8}),
        ("grouped order", {"group": 8}),
    ),
    "softmax": (
        ("online in lanes", {"block": 8192, "warps": 16}),
        ("keep in registers", {"kept": 32768, "warps": 16, "block": 8192}),
        ("exp2", {}),
        ("eviction hints", {}),
    ),
    "layernorm": (
        ("split rows", {"block": 8192, "warps": 8}),
        ("weights in registers", {"rows_each": 4, "apply_block": 2048}),
        ("backwards", {}),
        ("eviction hints", {}),
    ),
}
"""How the favourites grow from the naive kernel, move by move."""


@pytest.mark.parametrize("name", BEST)
def test_the_favourite_is_reachable_through_valid_states(name: str) -> None:
    workload = SHIPPED[name]
    family = template(workload)
    knobs = dict(family.naive)
    for name_of_move, choice in BEST[name]:
        move = next(move for move in family.moves if move.name == name_of_move)
        assert move.fits(workload, knobs), name_of_move
        assert all(choice[knob] in values for knob, values in move.varies.items())
        knobs = {**knobs, **move.sets, **choice}
        assert family.valid(workload, knobs), name_of_move
        ast.parse(family.render(workload, knobs))


def test_strict_problems_get_no_low_precision() -> None:
    workload = SHIPPED["matmul"]
    family = template(workload)
    assert not family.valid(workload, {**family.naive, "precision": "tf32"})
    assert not any(move.name == "tf32" and move.fits(workload, family.naive) for move in family.moves)


def test_settings_that_exceed_shared_memory_are_refused() -> None:
    workload = SHIPPED["matmul"]
    family = template(workload)
    tile: dict[str, Knob] = {"block_m": 128, "block_n": 256, "block_k": 64, "warps": 8}
    assert family.valid(workload, {**family.naive, **tile, "split": "fp16x3", "stages": 2})
    assert not family.valid(workload, {**family.naive, **tile, "split": "fp16x3", "stages": 3})
