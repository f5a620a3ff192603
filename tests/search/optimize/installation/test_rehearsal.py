"""What installation needs is known before a search: calls and results of many kinds, and clear refusals."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm
from torch.utils import _pytree as pytree

from evaluators.base.usage_error import UsageError
from search.optimize.extraction.traced_model import trace_model
from search.optimize.installation.package import load_package, write_package
from search.optimize.installation.rehearsal import rehearse
from search.optimize.models.source import LoadedModel
from search.optimize.models.templates import differences, take_apart
from tests.search.optimize.example_models import loaded, rand


class Pair(NamedTuple):
    out: torch.Tensor
    rest: Any = None


@dataclass
class Output:
    """Like the outputs of transformers' models."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None
    kept: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    scale: float


@dataclass(slots=True)
class Slotted:
    x: torch.Tensor


class Registered:
    """A pytree, by its registration."""

    def __init__(self, x: torch.Tensor, name: str) -> None:
        self.x, self.name = x, name


pytree.register_pytree_node(
    Registered, lambda each: ([each.x], each.name), lambda own, name: Registered(*own, name)
)


class ModelOutput(collections.OrderedDict[str, Any]):
    """Registered as those of transformers are."""


pytree.register_pytree_node(
    ModelOutput,
    lambda each: (list(each.values()), list(each.keys())),
    lambda own, keys: ModelOutput(zip(keys, own, strict=True)),
)


class Attributes(dict[str, Any]):
    """Like the dicts whose keys are attributes, in many configuration packages."""

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        vars(self).update(items)


@dataclass
class Known:
    y: torch.Tensor
    name: str


pytree.register_dataclass(Known)


class Mode(enum.Enum):
    TWICE = 2
    THRICE = 3


class Nested:
    class Result(NamedTuple):
        y: torch.Tensor


class Taking(nn.Module):
    """A model that takes anything; its result is made by a function."""

    def __init__(self, made: Callable[..., Any]) -> None:
        super().__init__()
        self.made, self.norm = made, nn.LayerNorm(8)

    def forward(self, x: torch.Tensor, how: Any = None, *, scale: float = 1.0) -> Any:
        return self.made(self.norm(x) * scale, how)


def rehearsed(module: nn.Module, *args: Any, **kwargs: Any) -> LoadedModel:
    model = replace(loaded(module.eval(), *args), kwargs=kwargs)
    rehearse([trace_model(model)])
    return model


def taken_apart(value: Any) -> tuple[Any, list[torch.Tensor]]:
    tensors: list[torch.Tensor] = []
    return take_apart(value, tensors), tensors


RESULTS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "a named tuple": lambda x, _: Pair(x, [x + 1, None]),
    "a nested class": lambda x, _: Nested.Result(x),
    "torch's own": lambda x, _: torch.topk(x, 2),
    "several of torch's own": lambda x, _: (x.max(0), torch.sort(x), torch.linalg.qr(x)),
    "a dataclass": lambda x, _: Output(x, kept=(x * 2,)),
    "a frozen dataclass": lambda x, _: Frozen(x, 0.5),
    "slots": lambda x, _: Slotted(x),
    "a registered pytree": lambda x, _: Registered(x, "name"),
    "a model's output": lambda x, _: ModelOutput(logits=x, hidden=(x, x * 2)),
    "ordered and default dicts": lambda x, _: (
        collections.OrderedDict(b=x, a=x + 1),
        collections.defaultdict(list, {"a": [x]}),
        collections.deque([x], maxlen=3),
    ),
    "keys in another order": lambda x, _: {"b": x, "a": None, 3: x + 1},
    "a subclass of dict": lambda x, _: Attributes(logits=x, rest=[x + 1]),
    "a registered dataclass": lambda x, _: Known(x, "name"),
    "a distribution": lambda x, _: torch.distributions.Normal(x, x.exp()),
    "a packed sequence": lambda x, _: nn.utils.rnn.pack_sequence([x[0], x[1]]),
    "no tensor": lambda x, _: (None, 1),
    "its input": lambda x, _: [x, x],
    "an object": lambda x, _: SimpleNamespace(x=x, deeper=SimpleNamespace(y=x + 1)),
    "values of many types": lambda x, _: (
        x,
        float("inf"),
        float("nan"),
        True,
        1,
        1j,
        torch.float16,
        torch.device("cpu"),
        x.shape,
        slice(1, None),
        {1, 2},
        Mode.THRICE,
        b"bytes",
        ...,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RESULTS)
@torch.no_grad()
def test_a_result_of_any_kind_is_made_again(kind: str, tmp_path: Path) -> None:
    module = Taking(RESULTS[kind]).eval()
    wanted = module(rand(4, 8))
    made = trace_model(loaded(module, rand(4, 8)))
    rehearse([made])
    write_package(tmp_path, [made], {}, {})
    load_package(tmp_path).load(module)
    found = module(rand(4, 8))
    assert not type(module).plan.fallbacks  # type: ignore[attr-defined]
    assert type(found) is type(wanted)
    (ours, own), (theirs, others) = taken_apart(found), taken_apart(wanted)
    assert ours == theirs and all(map(torch.equal, own, others))


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        torch.float16,
        torch.device("cpu"),
        torch.channels_last,
        slice(0, 2),
        np.float32(2),
        np.arange(3),
        Mode.TWICE,
        1 + 2j,
        {"a", "b"},
        range(3),
        np,
        torch.relu,
        nn.functional.gelu,
        len,
        int,
        ...,
        b"x",
        float("nan"),
        Pair(rand(4, 8)),
        Output(rand(4, 8)),
        Frozen(rand(4, 8), 1.0),
        Registered(rand(4, 8), "a"),
        SimpleNamespace(mask=rand(4, 8), scale=2),
        [{"x": (rand(4, 8), None)}],
        Path("file"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_argument_of_any_kind_is_known_again(how: Any) -> None:
    rehearsed(Taking(lambda x, how: x * 2), rand(4, 8), how)


OTHERS = [
    (torch.float16, torch.float32),
    (slice(0, 2), slice(0, 3)),
    (np.float32(2), np.float64(2)),
    (np.arange(3), np.arange(3) + 1),
    (Mode.TWICE, Mode.THRICE),
    (1, True),
    (1, 1.0),
    ("a", "b"),
    (torch.relu, torch.tanh),
    ({"a"}, {"b"}),
    (SimpleNamespace(scale=2), SimpleNamespace(scale=3)),
    ([1, 2], (1, 2)),
    (rand(4, 8), None),
]


@pytest.mark.parametrize(("recorded", "other"), OTHERS, ids=[str(number) for number in range(len(OTHERS))])
@torch.no_grad()
def test_another_argument_runs_the_original_forward(recorded: Any, other: Any, tmp_path: Path) -> None:
    module = Taking(lambda x, how: (x, str(how)))
    write_package(tmp_path, [trace_model(loaded(module.eval(), rand(4, 8), recorded))], {}, {})
    load_package(tmp_path).load(module)
    assert module(rand(4, 8), other)[1] == str(other)
    [why] = type(module).plan.fallbacks  # type: ignore[attr-defined]
    assert why.startswith("no recorded call is like this one: how") and "TreeSpec" not in why


def local() -> Any:
    class Local(NamedTuple):
        x: torch.Tensor

    return Local


def cyclic() -> Any:
    made = SimpleNamespace()
    made.itself = made
    return made


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (torch.Generator(), "the argument how is a Generator; a recorded call may contain tensors"),
        ([1, lambda: 2], r"the argument how\[1\] is the local function <lambda>"),
        ({"mask": iter([])}, r"the argument how\['mask'\] is a list_iterator"),
        (SimpleNamespace(model=nn.Linear(1, 1)), r"the argument how\.model is a Linear"),
        (functools.partial(len, []), "the argument how is a partial"),
        (local()(rand(1)), "the argument how is a Local, a class defined inside a function"),
        (np.zeros(10_000), "the argument how is a numpy array of 10000 elements; pass a tensor"),
        (cyclic(), r"the argument how\.itself is a SimpleNamespace that contains itself"),
    ],
)
def test_an_argument_that_cannot_be_recorded_is_named(how: Any, why: str) -> None:
    with pytest.raises(UsageError, match=f"kernels cannot be installed: {why}") as raised:
        rehearsed(Taking(lambda x, how: x), rand(4, 8), how)
    assert "\n" not in str(raised.value)


def changing(x: torch.Tensor, how: Any) -> torch.Tensor:
    how["last"] = x
    return x * 2


@pytest.mark.parametrize(
    ("made", "how", "why"),
    [
        (lambda x, _: local()(x), None, "its output is a Local, a class defined inside a function"),
        (lambda x, _: (x, (each for each in ())), None, r"its output\[1\] is a generator"),
        (changing, {}, r"it changes its arguments: how\['last'\] is given \(a tensor\)"),
        (
            lambda x, how: how.append(x) or x * 2,
            [],
            r"it changes its arguments: how\[0\] is given \(a tensor\)",
        ),
    ],
)
def test_a_forward_that_cannot_be_repeated_is_refused(made: Callable[..., Any], how: Any, why: str) -> None:
    with pytest.raises(UsageError, match=f"kernels cannot be installed: {why}"):
        rehearsed(Taking(made), rand(4, 8), how)


class Hooked(nn.Module):
    """A model with a layer whose weight has a norm."""

    def __init__(self, norm: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.layer = norm(nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x).relu()


@pytest.mark.parametrize(
    "norm",
    [weight_norm, spectral_norm, parametrizations.weight_norm, parametrizations.spectral_norm],
    ids=["weight", "spectral", "parametrized weight", "parametrized spectral"],
)
@pytest.mark.filterwarnings("ignore:.*deprecated")
@torch.no_grad()
def test_hooks_that_only_compute_a_weight_are_part_of_the_code(
    norm: Callable[[nn.Module], nn.Module], tmp_path: Path
) -> None:
    module = Hooked(norm)
    model = rehearsed(module, rand(4, 8))
    write_package(tmp_path, [trace_model(model)], {}, {})
    load_package(tmp_path).load(module)
    for each in module.parameters():
        each.mul_(2)
    found = module(rand(4, 8))
    assert not type(module).plan.fallbacks  # type: ignore[attr-defined]
    load_package(tmp_path).unload(module)
    assert torch.allclose(found, module(rand(4, 8)))


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_other_hooks_are_refused_at_once(register: str) -> None:
    module = Hooked(lambda layer: layer)
    getattr(module.layer, register)(lambda *given: None)
    with pytest.raises(UsageError, match=r"the module layer has the hook .*lambda.*remove it first"):
        rehearsed(module, rand(4, 8))


def test_a_hook_of_the_whole_model_that_changes_the_input_is_refused() -> None:
    module = Hooked(lambda layer: layer)
    module.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    with pytest.raises(UsageError, match="its forward as code has different results: other numbers"):
        rehearsed(module, rand(4, 8))


@torch.no_grad()
def test_one_tensor_for_two_arguments_is_another_call(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * 2 + y

    module, x = Sum().eval(), rand(4)
    write_package(tmp_path, [trace_model(loaded(module, x, x))], {}, {})
    load_package(tmp_path).load(module)
    assert torch.equal(module(x, x), x * 3) and not type(module).plan.fallbacks  # type: ignore[attr-defined]
    assert torch.equal(module(x, x + 1), x * 2 + (x + 1))
    [why] = type(module).plan.fallbacks  # type: ignore[attr-defined]
    assert why.endswith("other arguments are one and the same tensor")


@torch.no_grad()
def test_defaults_and_positions_do_not_matter(tmp_path: Path) -> None:
    module = Taking(lambda x, how: x)
    write_package(tmp_path, [trace_model(loaded(module.eval(), rand(4, 8)))], {}, {})
    load_package(tmp_path).load(module)
    wanted = module(rand(4, 8))
    for found in (
        module(x=rand(4, 8)),
        module(rand(4, 8), None),
        module(how=None, x=rand(4, 8), scale=1.0),
    ):
        assert torch.equal(found, wanted)
    assert not type(module).plan.fallbacks  # type: ignore[attr-defined]


def test_a_forward_with_another_default_is_refused(tmp_path: Path) -> None:
    module = Taking(lambda x, how: x)
    write_package(tmp_path, [trace_model(loaded(module.eval(), rand(4, 8)))], {}, {})

    class Other(Taking):
        def forward(self, x: torch.Tensor, how: Any = None, *, scale: float = 2.0) -> Any:
            return super().forward(x, how, scale=scale)

    with pytest.raises(ValueError, match="the forward has the parameter scale; it must have scale, with the"):
        load_package(tmp_path).load(Other(lambda x, how: x))


def test_a_difference_is_named_by_its_place() -> None:
    before = {"a": [1, SimpleNamespace(b=None)], "c": 2}
    after = {"a": [1, SimpleNamespace(b=0.5)], "c": 2}
    (first, _), (second, _) = taken_apart(before), taken_apart(after)
    assert [*differences(first, second, "x")] == ["x['a'][1].b is 0.5, not None"]
    assert dataclasses.is_dataclass(Output) and isinstance(iter([]), Iterator)


@torch.no_grad()
def test_a_forward_that_takes_anything_is_known_by_its_arguments(tmp_path: Path) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Taking(lambda x, how: x if how is None else x + how)

        @torch.no_grad()
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.inner(*args, **kwargs)

    module, x = Wrapped().eval(), rand(4, 8)
    rehearsed(module, x, how=x + 1, scale=2.0)
    model = replace(loaded(module, x), kwargs={"how": x + 1, "scale": 2.0})
    write_package(tmp_path, [trace_model(model)], {}, {})
    wanted = module(x, how=x + 1, scale=2.0)
    load_package(tmp_path).load(module)
    assert torch.equal(module(x, scale=2.0, how=x + 1), wanted)
    module(x, how=None, scale=2.0)
    [why, *_] = type(module).plan.fallbacks  # type: ignore[attr-defined]
    assert "how is None, not a tensor" in why


@torch.no_grad()
def test_attention_to_one_tensor(tmp_path: Path) -> None:
    """PyTorch asks whether query, key and value are the same object."""

    class SelfAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            return self.attention(q, k, v, need_weights=False)

    module, x, y = SelfAttention().eval(), rand(2, 4, 8), rand(2, 4, 8) + 1
    wanted = [module(*call)[0] for call in ((x, x, x), (x, y, y), (x, y, x))]
    rehearsed(module, x, x, x)
    write_package(tmp_path, [trace_model(loaded(module, x, x, x))], {}, {})
    load_package(tmp_path).load(module)
    for call, own in zip(((x, x, x), (x, y, y), (x, y, x)), wanted, strict=True):
        assert torch.allclose(module(*call)[0], own, atol=1e-6)
    assert sum(type(module).plan.fallbacks.values()) == 2  # type: ignore[attr-defined]
