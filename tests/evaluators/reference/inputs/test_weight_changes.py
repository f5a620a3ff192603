"""Other weights: which of them change, by how much, and how often who looks at a few of them misses it."""

from __future__ import annotations

import itertools
import json
import secrets
from dataclasses import asdict

import pytest
import torch
from torch import nn

from evaluators.records.timing import MIN_PAIRS
from evaluators.reference.inputs import weight_changes
from evaluators.reference.inputs.weight_changes import (
    EVERY,
    FEWEST,
    SHARE,
    TURNS,
    ZERO,
    WeightChange,
    change,
    forms_of,
    known_buffers,
    moments,
    plain_buffers,
    restore,
    turns,
)


class Net(nn.Module):
    """Parameters of several kinds, statistics, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 64, 3)
        self.norm = nn.BatchNorm2d(64)
        self.last = nn.Linear(64, 10).half()
        self.register_buffer("table", torch.arange(10.0))


def net(*, channels_last: bool = False) -> Net:
    torch.manual_seed(0)
    made = Net()
    return made.to(memory_format=torch.channels_last) if channels_last else made


def values(module: nn.Module) -> list[torch.Tensor]:
    return [each.detach().clone() for each in module.state_dict().values()]


def changed(module: nn.Module, *turn: int) -> list[torch.Tensor]:
    """Which elements a change of the weights changes, a tensor each."""
    before = change(module, WeightChange(seed=secrets.randbits(62), turn=turn), alike=True)
    found = [now != was for now, was in zip(weight_changes.weights_of(module), before, strict=True)]
    restore(module, before)
    return found


@pytest.mark.parametrize("signed", [True, False])
def test_everything_changes_but_constants_and_is_restored(signed: bool) -> None:
    module = net()
    before = values(module)
    kept = change(module, WeightChange(seed=7, signed=signed), alike=True)
    for name, was, now in zip(module.state_dict(), before, values(module), strict=True):
        if name in ("table", "norm.num_batches_tracked"):
            assert torch.equal(now, was), name
            continue
        assert (now != was).float().mean() > 0.95, name  # half precision rounds some of it away
        assert now.unique().numel() > 0.9 * min(now.numel(), 512), f"{name}: all different"
        typical = was.float().square().mean().sqrt().item() or 1.0
        assert now.float().square().mean().sqrt() < 1.5 * typical, "of about the same size"
        if "running" in name or not signed:
            assert (now * was >= 0).all(), f"{name} keeps its signs"
        else:
            assert 0.3 < (now > 0).float().mean() < 0.7, f"{name} has other signs"
    restore(module, kept)
    assert all(map(torch.equal, values(module), before))


def test_in_a_turn_some_places_of_some_tensors_change() -> None:
    module = net()
    sizes = [each.numel() for each in weight_changes.weights_of(module)]
    before = values(module)
    found = changed(module, 0, 3)
    assert [number for number, each in enumerate(found) if each.any()] == [0, 3]
    assert FEWEST < found[0].sum() <= round(SHARE * sizes[0])
    assert 1 <= found[3].sum() <= FEWEST
    assert all(map(torch.equal, values(module), before))


def test_a_change_shows_in_half_precision_too() -> None:
    module = net()
    for turn in range(6):
        assert changed(module, turn)[turn].any()


@pytest.mark.parametrize("turn", [None, (0, 4, 6)])
def test_both_sides_change_alike_however_they_lie_in_memory(turn: tuple[int, ...] | None) -> None:
    ours, theirs = net(), net(channels_last=True)
    assert not theirs.conv.weight.is_contiguous()
    seed = secrets.randbits(62)
    how = WeightChange(seed=seed, turn=turn)
    change(ours, how, alike=True)
    change(theirs, how, alike=True)
    assert all(map(torch.equal, values(ours), values(theirs)))
    change(theirs, WeightChange(seed=seed + 1, turn=turn), alike=True)
    assert not all(map(torch.equal, values(ours), values(theirs)))


@pytest.mark.parametrize("turn", [None, (0, 1, 2, 3, 4, 5, 6, 7)])
def test_a_large_weight_changes_part_by_part(
    turn: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_changes, "PART", 100)
    one, other = net(), net(channels_last=True)
    how = WeightChange(seed=1, turn=turn)
    before = change(one, how, alike=True)
    change(other, how, alike=True)
    weights = weight_changes.weights_of(one)
    for now, was, theirs in zip(weights, before, weight_changes.weights_of(other), strict=True):
        assert torch.equal(now, theirs)
        assert (now != was).any() if turn is not None else (now != was).float().mean() > 0.9


def test_other_forms_change_element_by_element() -> None:
    module = net()
    weight = module.conv.weight.detach().clone()
    assert forms_of(module) != forms_of(nn.Linear(3, 3))
    before = change(module, WeightChange(seed=7, turn=(5,)), alike=False)
    assert torch.equal(module.conv.weight, weight / 2)
    assert module.norm.bias.unique().tolist() == [ZERO], "a bias that nobody adds shows"
    assert [each.dtype for each in weight_changes.weights_of(module)] == [each.dtype for each in before]


def test_a_packed_weight_changes_as_its_parts_do() -> None:
    class Packed(nn.Module):
        def __init__(self, norm: nn.BatchNorm2d) -> None:
            super().__init__()
            self.both = nn.Parameter(torch.cat([norm.weight, norm.bias]))

    norm = net().norm
    packed = Packed(norm)
    for module in (norm, packed):
        change(module, WeightChange(seed=7), alike=False)
    assert torch.equal(packed.both, torch.cat([norm.weight, norm.bias]))


def test_zeros_that_pad_a_weight_stay_where_a_kernel_has_such() -> None:
    module = nn.Module()
    module.register_parameter("padded", nn.Parameter(torch.tensor([2.0, 4.0, 0.0, 0.0])))
    module.register_parameter("bias", nn.Parameter(torch.zeros(3)))
    kept = change(module, WeightChange(seed=7, padded=True), alike=False)
    assert module.padded.tolist() == [1.0, 2.0, 0.0, 0.0]
    assert module.bias.tolist() == [ZERO] * 3, "a bias that nobody adds shows all the same"
    restore(module, kept)
    assert module.padded.tolist() == [2.0, 4.0, 0.0, 0.0]


def test_buffers_that_are_no_constants_change_where_both_sides_have_them() -> None:
    def made(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        module = net()
        module.register_buffer("scale", torch.ones(8))
        module.register_buffer("noise", torch.randn(8))
        module.register_buffer("eps", torch.tensor(1e-5))
        return module

    module = made(1)
    module.noise.copy_(torch.randn(8))
    names = plain_buffers(module, lambda: made(2))
    assert names == ["scale", "noise"], "neither tables nor single numbers"
    forms = [[name, [8], "torch.float32"] for name in names]
    assert known_buffers(module, forms) == names
    assert known_buffers(net(), forms) == []
    before = values(module)
    how = WeightChange(seed=7, buffers=tuple(names))
    kept = change(module, how, alike=True)
    assert (module.scale > 0).all() and module.scale.unique().numel() == 8
    assert not torch.equal(module.noise, before[list(module.state_dict()).index("noise")])
    restore(module, kept, names)
    assert all(map(torch.equal, values(module), before))


def test_a_change_goes_through_json() -> None:
    for how in (WeightChange(seed=1, buffers=("a",)), WeightChange(seed=2, turn=(1, 2), padded=True)):
        assert WeightChange.from_json(json.loads(json.dumps(asdict(how)))) == how


def test_a_module_without_weights() -> None:
    assert turns(0) == [[]] * TURNS
    assert change(nn.ReLU(), WeightChange(seed=7, turn=()), alike=True) == []
    empty = nn.Module()
    empty.register_parameter("nothing", nn.Parameter(torch.empty(0)))
    change(empty, WeightChange(seed=7), alike=True)


@pytest.mark.parametrize("count", range(1, 20))
def test_every_tensor_has_its_turn(count: int) -> None:
    dealt = turns(count)
    assert len(dealt) == TURNS
    assert {*itertools.chain(*dealt)} == {*range(count)}
    assert all(dealt)
    if count >= TURNS:
        assert sum(map(len, dealt)) == count, "once each"


@pytest.mark.parametrize(("count", "most"), [(2, 0.0), (3, 0.0), (4, 0.25), (20, 0.4)])
def test_two_tensors_seldom_have_the_same_turn(count: int, most: float) -> None:
    together = sum({0, count - 1} <= {*turn} for _ in range(1000) for turn in turns(count))
    assert together / 1000 <= most


def test_a_measurement_has_a_change_for_every_turn() -> None:
    """Those before pairs of blocks, of which there are MIN_PAIRS at least, and the one after the last."""
    seen = set()
    for _ in range(200):
        due = list(itertools.islice(moments(), MIN_PAIRS))
        assert sum(due) + 1 >= TURNS
        seen.add(tuple(due))
    assert len(seen) == EVERY ** (MIN_PAIRS // EVERY), "at any moment"


@pytest.mark.slow
def test_who_looks_at_a_few_numbers_misses_the_changes() -> None:
    """The chance to notice a change, of SHARE an element that is looked at. Who looks at one of each tensor
    and is to notice a change of every turn does so once in millions of measurements."""
    module = nn.Linear(64, 64, bias=False)
    tries = 4000
    noticed = sum(bool(changed(module, 0)[0][0, 0]) for _ in range(tries))
    expected = tries * SHARE
    assert abs(noticed - expected) < 6 * expected**0.5
    assert SHARE**TURNS < 1e-7
