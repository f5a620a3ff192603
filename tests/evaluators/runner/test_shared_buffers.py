"""Shared memory: every tensor has a separate place, and both processes see the same values in it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluators.runner.shared_buffers import (
    ALIGNMENT,
    POISON,
    Layout,
    SharedBuffers,
    create_shared,
    free_shared,
    open_shared,
)

ROOT = Path(__file__).parents[3]
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool)

shapes = st.lists(st.integers(1, 7), max_size=4).map(tuple)


def example(shape: tuple[int, ...], dtype: torch.dtype, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Distinct values, laid out in memory with the axes in `order`."""
    count = math.prod(shape)
    values = torch.arange(count) % 2 if dtype is torch.bool else torch.arange(count) % 100 + 1
    order = order or tuple(range(len(shape)))
    stored = values.reshape([shape[axis] for axis in order]).to(dtype)
    return stored.permute([order.index(axis) for axis in range(len(shape))])


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(shapes)
    order = draw(st.permutations(range(len(shape))))
    return example(shape, draw(st.sampled_from(DTYPES)), tuple(order))


def memory_of(layout: Layout) -> torch.Tensor:
    return torch.zeros(layout.bytes, dtype=torch.uint8)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(tensors(), min_size=1, max_size=4), st.integers(1, 3))
def test_views_look_like_the_tensors_and_have_their_values(parts: list[torch.Tensor], calls: int) -> None:
    layout = Layout.of(parts, calls)
    views = layout.views(memory_of(layout))
    assert len(views) == calls
    for number, call in enumerate(views):
        for view, part in zip(call, parts, strict=True):
            assert (view.shape, view.dtype, view.stride()) == (part.shape, part.dtype, part.stride())
            view.copy_(part if number % 2 == 0 else torch.zeros_like(part))
    for number, call in enumerate(views):
        for view, part in zip(call, parts, strict=True):
            assert torch.equal(view, part if number % 2 == 0 else torch.zeros_like(part))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(tensors(), min_size=1, max_size=4), st.integers(1, 3))
def test_no_two_views_share_a_byte(parts: list[torch.Tensor], calls: int) -> None:
    layout = Layout.of(parts, calls)
    memory = memory_of(layout)
    owner: dict[int, tuple[int, int]] = {}
    for number, call in enumerate(layout.views(memory)):
        for slot, view in enumerate(call):
            memory.zero_()
            view.fill_(1)
            first = view.data_ptr() - memory.data_ptr()
            taken = range(first, first + view.numel() * view.element_size())
            touched = memory.nonzero().flatten().tolist()
            assert set(touched) <= set(taken)
            assert touched, "nothing was written into the memory"
            assert first % ALIGNMENT == 0
            assert taken.stop <= layout.bytes
            for byte in taken:
                assert owner.setdefault(byte, (number, slot)) == (number, slot)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (1, 1, 1), (17,), (513,), (2, 3, 5, 7)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_odd_shapes_of_every_dtype(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    part = example(shape, dtype)
    layout = Layout.of([part, part], 2)
    for call in layout.views(memory_of(layout)):
        for view in call:
            view.copy_(part)
            assert torch.equal(view, part)
            assert view.dtype is dtype


@pytest.mark.parametrize(
    "part",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(48.0).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last),
        torch.arange(24.0).reshape(2, 3, 4).permute(1, 2, 0),
    ],
    ids=["transposed", "channels last", "permuted"],
)
def test_dense_strides_are_kept(part: torch.Tensor) -> None:
    layout = Layout.of([part], 2)
    assert all(call[0].stride() == part.stride() for call in layout.views(memory_of(layout)))


@pytest.mark.parametrize(
    "part",
    [
        torch.arange(4.0).expand(3, 4),
        torch.arange(3.0).reshape(3, 1).expand(3, 4),
        torch.arange(24.0).reshape(4, 6)[:, ::2],
        torch.arange(24.0).reshape(4, 6)[1:, 1:4],
        torch.arange(4.0).as_strided((2, 3), (1, 1)),
    ],
    ids=["expanded", "expanded column", "stepped", "window", "overlapping"],
)
def test_strides_with_gaps_or_overlaps_become_contiguous(part: torch.Tensor) -> None:
    layout = Layout.of([part], 2)
    for call in layout.views(memory_of(layout)):
        assert call[0].is_contiguous()
        call[0].copy_(part)
        assert torch.equal(call[0], part)


def test_a_layout_without_tensors_still_has_room() -> None:
    layout = Layout.of([], 3)
    assert layout.bytes > 0
    assert layout.views(memory_of(layout)) == [[], [], []]


@settings(max_examples=30, deadline=None)
@given(st.lists(tensors(), max_size=4), st.integers(1, 3))
def test_a_layout_crosses_the_channel(parts: list[torch.Tensor], calls: int) -> None:
    layout = Layout.of(parts, calls)
    assert Layout.from_json(json.loads(json.dumps(layout.to_json()))) == layout


@pytest.mark.parametrize("dtype", [*map(str, POISON), "float8_e4m3fn", "int64", "bool"])
def test_unwritten_elements_are_detected_and_differ_from_nan(dtype: str) -> None:
    part = torch.zeros(3, 5).to(getattr(torch, dtype))
    buffers = SharedBuffers([part], [torch.zeros(7), part], 4, "cpu")
    buffers.poison(buffers.outputs.calls)
    places = [call[1] for call in buffers.output_views]
    if dtype in POISON:
        assert all(place.isnan().all() for place in places)
    for call in buffers.output_views:
        call[0].zero_()
    for place in places[:3]:
        place.view(torch.uint8).fill_(255)  # a NaN, in floating types
    assert buffers.unwritten(3).tolist() == [False] * 3
    assert buffers.unwritten(4).tolist() == [False] * 3 + [dtype in POISON]
    assert buffers.sample_output(3).missing is None
    assert buffers.sample_output(4).missing == (3 if dtype in POISON else None)
    buffers.free()


def test_only_the_calls_of_a_block_are_poisoned_for_it() -> None:
    part = torch.zeros(5)
    buffers = SharedBuffers([part], [part], 4, "cpu")
    for call in buffers.output_views:
        call[0].zero_()
    buffers.poison(2)
    assert buffers.unwritten(4).tolist() == [True, True, False, False]
    buffers.free()


def test_a_fork_shares_the_memory() -> None:
    parts = [example((3, 5), torch.float16), example((), torch.int64), example((7,), torch.bool)]
    layout = Layout.of(parts, 2)
    memory, description, fd = create_shared(layout.bytes, "cpu")
    pid = os.fork()
    if pid == 0:
        try:
            for view, part in zip(layout.views(open_shared(description, fd))[1], parts, strict=True):
                view.copy_(part)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)
    first, second = layout.views(memory)
    assert all(not view.any() for view in first)
    assert all(torch.equal(view, part) for view, part in zip(second, parts, strict=True))


OTHER_SIDE = """
import json, sys
import torch
from evaluators.runner.shared_buffers import Layout, open_shared

order = json.loads(sys.argv[1])
layout = Layout.from_json(order["layout"])
memory = open_shared(order["buffers"], order["fd"])
for call in layout.views(memory):
    for view in call:
        view.copy_(view.logical_not() if view.dtype is torch.bool else view + 1)
"""


@pytest.mark.slow
def test_another_process_reads_and_writes_the_same_tensors() -> None:
    parts = [
        example((2, 3, 4), torch.float32, (2, 0, 1)),
        example((5,), torch.bfloat16),
        example((9,), torch.bool),
    ]
    layout = Layout.of(parts, 2)
    memory, description, fd = create_shared(layout.bytes, "cpu")
    for call in layout.views(memory):
        for view, part in zip(call, parts, strict=True):
            view.copy_(part)
    order = json.dumps({"layout": layout.to_json(), "buffers": description, "fd": fd})
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OTHER_SIDE), order],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        pass_fds=(fd,),
        check=True,
    )
    os.close(fd)
    for call in layout.views(memory):
        for view, part in zip(call, parts, strict=True):
            assert torch.equal(view, part.logical_not() if part.dtype is torch.bool else part + 1)


def test_new_memory_is_zero_and_has_the_requested_size() -> None:
    memory, description, fd = create_shared(12345, "cpu")
    assert (memory.numel(), memory.dtype, description) == (
        12345,
        torch.uint8,
        {"bytes": 12345, "device": "cpu"},
    )
    assert not memory.any()
    os.close(fd)
    free_shared(memory)


def test_the_descriptor_is_closed_by_the_side_that_opens() -> None:
    memory, description, fd = create_shared(100, "cpu")
    other = open_shared(description, os.dup(fd))
    before = set(os.listdir("/proc/self/fd"))
    again = open_shared(description, os.dup(fd))
    # In CPython a mapping keeps its own descriptor; the one passed in is closed.
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1
    memory.fill_(7)
    assert torch.equal(other, again)
    assert other.tolist() == [7] * 100
    os.close(fd)


def test_too_large_a_size_raises_memory_error_and_leaves_no_descriptor() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(MemoryError, match="bytes of shared memory"):
        create_shared(2**62, "cpu")
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_device_memory_is_shared_with_another_process() -> None:
    part = example((5, 7), torch.float16, (1, 0)).cuda()
    layout = Layout.of([part], 2)
    memory, description, fd = create_shared(layout.bytes, "cuda")
    for call in layout.views(memory):
        call[0].copy_(part)
    torch.cuda.synchronize()
    code = "import torch; torch.cuda.init()\n" + OTHER_SIDE + "\ntorch.cuda.synchronize()"
    order = json.dumps({"layout": layout.to_json(), "buffers": description, "fd": fd})
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, order], cwd=ROOT, env=environment, pass_fds=(fd,), check=True)
    os.close(fd)
    assert all(torch.equal(call[0], part + 1) for call in layout.views(memory))
    free_shared(memory)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_device_memory_is_given_back() -> None:
    free, _ = torch.cuda.mem_get_info()
    memory, _, fd = create_shared(2**30 + 1, "cuda")
    assert torch.cuda.mem_get_info()[0] <= free - 2**30
    os.close(fd)
    free_shared(memory)
    assert torch.cuda.mem_get_info()[0] == free
    with pytest.raises(MemoryError, match="memory"):
        create_shared(2**50, "cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_rehearsed_sample_allocates_no_device_memory() -> None:
    big = torch.empty(2**26, device="cuda")
    buffers = SharedBuffers([big], [big, big[:1000].half()], 1, "cuda", changed=[0])
    buffers.poison(buffers.outputs.calls)
    torch.cuda.empty_cache()
    buffers.rehearse_sampling(1)
    before = torch.cuda.memory_stats()["num_device_alloc"]
    taken = buffers.sample_output(1)
    assert (taken.missing, len(taken.outputs)) == (0, 3)
    assert torch.cuda.memory_stats()["num_device_alloc"] == before
    buffers.free()
