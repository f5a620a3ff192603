"""Cards: written and read again, by hand too; every shipped one is whole."""

from __future__ import annotations

import ast
from dataclasses import replace
from datetime import date

import pytest
import torch
import yaml

from evaluators.records.evaluation import CaseResult, Evaluation, Status
from evaluators.records.time_spent import DeviceLease
from kernel_library.catalogue import cards
from kernel_library.catalogue.entry import Entry, Lineage, RepeatedMeasurement
from kernel_library.catalogue.library import SEEDS, FolderLibrary
from kernel_library.catalogue.originals import original_of
from kernel_library.catalogue.traits import traits_of
from kernel_library.overrides.shapes import all_fit, fits, sizes_of
from tests.kernel_library.entries import GPU, entry, evaluation, shipped

SOFTMAX = shipped("level1/softmax", sizes={"batch": 8}, dtype="float16", floor=False)
BY_HAND = """
op: softmax
tags: [rows, online]
language: triton
dtypes: [float32, float16]
shapes: ['...x1..131072']
function: softmax
licence: Apache-2.0
measurements:
- problem: {name: level1/softmax, dtype: float16, device: cuda, tolerance: strict, sizes: {batch: 8}}
  inputs: [8x65536]
  date: 2026-11-01
  command: python -m kernel_library.verify entry=softmax/online
  evaluation:
    status: correct
    timing: {kernel_ms: 0.5, eager_ms: 1, compile_ms: 0.6, speedup: 2, speedup_low: 1.9, speedup_high: 2.1}
    correctness: {checked_calls: 3, normwise_error: 1.0e-7, eager_error: 2.0e-7}
    environment: {device: NVIDIA H200, architecture: 9.0, torch: 2.11.0}
"""


def test_a_card_is_read_as_it_was_written() -> None:
    one = replace(
        entry(SOFTMAX, source="import triton\n", speedup=1.5),
        op="softmax",
        parts=("softmax",),
        tags=("rows", "1"),
        dtypes=("float16",),
        shapes=("...x1..", "8"),
        architectures=("9.0",),
        function="ModelNew",
        licence="MIT",
        lineage=Lineage(run="outputs/x", start="softmax/online", ideas=("one: pass", "zwei\nlines")),
    )
    source = one.kernel.source
    assert cards.load(cards.dump(one), source=source, reference=SOFTMAX.source) == one
    odd = shipped("level1/layernorm", sizes={"height": (1, (2, 3))})
    two = replace(one, measurements=(*one.measurements, *entry(odd).measurements))
    assert cards.load(cards.dump(two), source=source) == two  # by the names of shipped problems
    assert yaml.safe_load(cards.dump(two))["dtypes"] == ["float16"]


def test_cases_without_a_time_are_read_too() -> None:
    one = entry(SOFTMAX, source="import triton\n", speedup=1.5)
    drawn = CaseResult(name="n=3", weight=0.0, held_out=True, evaluation=Evaluation(status=Status.CORRECT))
    (measured,) = one.measurements
    several = replace(measured, evaluation=replace(measured.evaluation, cases=(drawn,)))
    one = replace(one, measurements=(several,))
    read = cards.load(cards.dump(one), source=one.kernel.source, reference=SOFTMAX.source)
    assert read.measurements[0].evaluation.cases == (drawn,)


def test_what_the_measurement_cost_is_not_in_a_card() -> None:
    timing = evaluation().timing
    assert timing is not None
    samples = replace(timing, kernel_samples_ms=(1.0, 2.0), eager_samples_ms=(3.0,))
    lease = DeviceLease(device="0", held_s=9.0)
    costly = evaluation(timing=samples, device_s=7.0, build_s=8.0, stages_s={"timing": 7.0}, lease=lease)
    known = entry(SOFTMAX)
    known = replace(known, measurements=(replace(known.measurements[0], evaluation=costly),))
    (read,) = cards.load(cards.dump(known), source="x").measurements
    assert read.evaluation == evaluation()


def test_a_card_by_hand() -> None:
    read = cards.load(BY_HAND, source="import triton", name="softmax/online")
    (measurement,) = read.measurements
    assert measurement.problem == replace(SOFTMAX, floor=True, tolerance="strict", libraries="any")
    assert (measurement.architecture, measurement.date) == ("9.0", "2026-11-01")
    assert measurement.evaluation.environment["architecture"] == "9.0"
    assert measurement.evaluation.speedup == 2.0
    assert (read.id, read.tags, read.shapes) == ("softmax/online", ("rows", "online"), ("...x1..131072",))
    assert cards.load(cards.dump(read), source="import triton", name="softmax/online") == read


def test_a_card_gets_new_measurements_and_keeps_what_people_wrote() -> None:
    head = BY_HAND.partition("measurements:")[0].replace("op: softmax", "op: softmax  # of rows")
    (slower,) = entry(SOFTMAX, speedup=1.5).measurements
    (faster,) = entry(SOFTMAX, speedup=3.0).measurements
    (other,) = entry(shipped("level1/layernorm", sizes={"batch": 1})).measurements
    text = head
    for measurement in (slower, other, faster):
        text = cards.renew(text, measurement)
    assert text.startswith(head)
    assert cards.load(text, source="import triton").measurements == (other, faster)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("op: softmax", "op: [softmax"),
        ("op: softmax", "opp: softmax"),
        ("language: triton", "language: basic"),
        ("language: triton\n", ""),
        ("status: correct", "status: incorrect"),
        ("name: level1/softmax", "name: level1/softmux"),
        ("speedup_low: 1.9", "speedup_low: 2.9"),
        (BY_HAND, "- a\n- list"),
    ],
)
def test_what_is_no_card_is_refused(old: str, new: str) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        cards.load(BY_HAND.replace(old, new), source="import triton")


def test_a_check_is_read_as_it_was_written() -> None:
    failed = Evaluation(status=Status.REJECTED, rule="library", log="two\nlines", environment=GPU)
    for found in (evaluation(3.0), failed):
        check = RepeatedMeasurement(
            problem_id="0123456789ab", evaluation=found, date=date(2026, 11, 1).isoformat()
        )
        assert cards.load_check(cards.dump_check(check)) == check


SHIPPED = FolderLibrary("memory://no-root").entries()


def test_every_shipped_card_is_read() -> None:
    """A kernel without a card has not been measured yet, and is no entry."""
    assert len(SHIPPED) == len([*SEEDS.glob("*/*/card.yaml")])


@pytest.mark.parametrize("seed", SHIPPED, ids=lambda seed: seed.id)
def test_a_shipped_card_says_all(seed: Entry) -> None:
    assert seed.dtypes and seed.shapes and seed.licence and seed.tags
    defined = {node.name for node in ast.parse(seed.kernel.source).body if hasattr(node, "name")}
    assert {seed.function, "ModelNew"} <= {*defined, ""}
    for each in seed.measurements:
        assert seed.op in (traits_of(each.problem).op, each.problem.name.rpartition("/")[2])
        sizes = [[int(size) for size in shape.split("x")] for shape in each.inputs]
        assert len(seed.shapes) == len(sizes)
        assert all(map(fits, seed.shapes, sizes))
        assert each.date and each.command
        found = each.evaluation
        assert found.correctness is not None and found.roofline is not None
        assert {"device", "torch"} <= set(found.environment)


@pytest.mark.parametrize("seed", [each for each in SHIPPED if each.function], ids=lambda each: each.id)
def test_a_whole_call_of_a_function_fits_its_card(seed: Entry) -> None:
    """Also when `best` is given more tensors than the problem has inputs, such as weights."""
    original = original_of(seed.op, seed)
    assert original is not None
    inputs = [torch.empty(sizes_of(each), device="meta") for each in seed.measurements[0].inputs]
    given = inputs if len(inputs) == original.tensors else inputs[:1]
    whole = [each.shape for each in original.arguments(*given) if isinstance(each, torch.Tensor)]
    assert all_fit(seed.shapes, whole)
