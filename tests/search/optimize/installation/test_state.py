"""A model that is changed after loading runs its own forward; one that differs is refused."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize, spectral_norm, weight_norm
from torch.utils.flop_counter import FlopCounterMode

from search.optimize.extraction.calls import merge_calls
from search.optimize.extraction.graph import CaptureError
from search.optimize.extraction.traced_model import trace_model
from search.optimize.installation.package import load_package, write_package
from search.optimize.installation.rehearsal import rehearse
from search.optimize.models.source import InputShape, load_at_shapes
from tests.search.optimize.example_models import rand
from tests.search.optimize.extraction.traced_models import traced
from tests.search.optimize.installation.changing_models import (
    WIDTH,
    Doubled,
    Factor,
    Layer,
    Lora,
    Settings,
    Simple,
    Stack,
    Tripled,
)
from tests.search.optimize.installation.test_package import plan

Change = Callable[[Any], object]
X = rand(2, 5, WIDTH)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def made(module: Callable[[], nn.Module]) -> nn.Module:
    """A model that ran once, with the same weights every time."""
    torch.manual_seed(0)
    model = module().eval()
    model(X)
    return model


def package(folder: Path, module: Callable[[], nn.Module]) -> Any:
    """The package of a model, without kernels."""
    write_package(folder, [traced(made(module), X)], {}, {})
    return load_package(folder)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with torch.no_grad():
        return package(tmp_path_factory.mktemp("stack"), Stack)


def check(loads: Any, module: Callable[[], nn.Module], change: Change, why: str) -> None:
    """Changes a loaded model and compares it with the model itself. `why` is part of the only reason for
    which the model's own forward ran; "" if the recorded one has to."""
    own, model = made(module), loads.load(made(module))
    model(X)
    assert not plan(model).fallbacks
    change(own)
    change(model)
    assert torch.allclose(model(X), own(X), atol=1e-6)
    reasons = [*plan(model).fallbacks]
    assert [why in each for each in reasons] == [True] * bool(why), reasons


def setting(path: str, value: Any) -> Change:
    """Sets an attribute."""
    *parts, name = path.split(".")

    def change(model: Any) -> None:
        setattr(functools.reduce(getattr, parts, model), name, value)

    return change


def put_in(layer: type[nn.Module]) -> Change:
    def change(model: Any) -> None:
        model.head = layer(model.head)

    return change


def tripled(model: Any) -> None:
    new = Tripled(WIDTH, WIDTH, bias=False)
    new.weight = model.head.weight
    model.head = new


def without_statistics(model: Any) -> None:
    model.bn.running_mean = model.bn.running_var = None
    model.bn.track_running_stats = False


CHANGES: dict[str, tuple[Change, str]] = {
    "a hook": (
        lambda model: model.layers[1].norm.register_forward_hook(lambda *given: given[2] * 2),
        "the module layers.1.norm has hooks",
    ),
    "a hook before": (
        lambda model: model.layers[0].register_forward_pre_hook(lambda _, given: (given[0] * 2,)),
        "the module layers.0 has hooks",
    ),
    "a hook backward": (
        lambda model: model.head.register_full_backward_hook(lambda *_: None),
        "the module head has hooks",
    ),
    "a hook of the model itself": (
        lambda model: model.register_forward_hook(lambda *given: given[2] * 2),
        "",
    ),
    "the mode of a batch norm": (lambda model: model.bn.train(), "the module bn is in training mode"),
    "the mode of a norm": (
        lambda model: model.layers[1].norm.train(),
        "the module layers.1.norm is in training mode",
    ),
    "eps": (setting("bn.eps", 0.5), "bn.eps is 0.5; it must be 1e-05"),
    "a slope": (setting("layers.0.act.negative_slope", 0.7), "layers.0.act.negative_slope is 0.7"),
    "a scale": (setting("layers.1.heads.scale", 0.5), "layers.1.heads.scale is 0.5; it must be 0.25"),
    "a mode of padding": (setting("conv.padding_mode", "zeros"), "conv.padding_mode is 'zeros'"),
    "a config's number": (
        lambda model: setattr(model.layers[0].heads.settings, "heads", 8),
        "layers.0.heads.settings.heads is 8; it must be 4",
    ),
    "another config": (setting("layers.1.heads.settings", Settings(8)), "settings.heads is 8; it must be 4"),
    "an equal config": (setting("layers.1.heads.settings", Settings(4)), ""),
    "a config without a dictionary": (setting("layers.0.factor", Factor(3.0)), "Factor(factor=3.0)"),
    "a list": (lambda model: model.layers[0].sizes.insert(0, 3), "layers.0.sizes is [3, 1, 2]"),
    "an attribute that nothing reads": (setting("unread", 4), ""),
    "a tensor": (setting("layers.0.mask", torch.full((WIDTH,), 2.0)), ""),
    "a tensor's numbers": (lambda model: model.layers[1].mask.fill_(3.0), ""),
    "a tensor's dtype": (setting("layers.0.mask", torch.ones(WIDTH).long()), "layers.0.mask is 16 int64"),
    "a number in a buffer": (lambda model: model.factor.fill_(-1.0), "-1.0 where 0.5 is expected"),
    "a layer of another class": (tripled, "the module head is Tripled; it must be Linear"),
    "an adapter": (put_in(Lora), "the module head is Lora; it must be Linear"),
    "an adapter that the forward looks for": (
        lambda model: setattr(model.layers[0], "lora", copy.deepcopy(model.head)),
        "the module layers.0.lora is Linear; it must be missing",
    ),
    "a parametrization": (
        lambda model: parametrize.register_parametrization(model.head, "weight", Doubled()),
        "the module head is ParametrizedLinear",
    ),
    "another forward of a module": (
        setting("layers.0.norm.forward", lambda x: x * 3),
        "layers.0.norm.forward is <lambda>",
    ),
    "another method of a module": (
        lambda model: setattr(model.conv, "_conv_forward", lambda x, *_: x * 3),
        "conv._conv_forward is <lambda>",
    ),
    "a removed layer": (lambda model: model.layers.__delitem__(0), "the module layers.1 is missing"),
    "a layer again": (lambda model: model.layers.append(model.layers[0]), "layers.2 is Layer; it must be"),
    "fewer layers": (lambda model: setattr(model, "layers", model.layers[:1]), "the module layers.1 is"),
    "no statistics": (without_statistics, "the model has no weight bn.running_mean"),
    "no weight": (setting("bn.weight", None), "the model has no weight bn.weight"),
    "a new bias": (
        setting("head.bias", nn.Parameter(torch.ones(WIDTH))),
        "head.bias is a tensor of 16 float32; it must be None",
    ),
    "new weights": (setting("head.weight", nn.Parameter(torch.ones(WIDTH, WIDTH))), ""),
    "new data": (lambda model: setattr(model.head.weight, "data", torch.ones(WIDTH, WIDTH)), ""),
    "transposed data": (
        lambda model: setattr(model.head.weight, "data", model.head.weight.data.t()),
        "the weight head.weight has strides (1, 16); it must have (16, 1)",
    ),
    "fewer rows": (
        lambda model: setattr(model.head.weight, "data", model.head.weight.data[:4]),
        "the weight head.weight is 4x16 float32 on cpu; it must be 16x16",
    ),
    "weights without gradients": (lambda model: model.requires_grad_(False), ""),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_runs_its_own_forward(name: str, stack: Any) -> None:
    check(stack, Stack, *CHANGES[name])


def test_a_module_may_be_moved_alone(stack: Any) -> None:
    model = stack.load(made(Stack))
    model.head.double()
    with pytest.raises(RuntimeError, match="same dtype"):  # as the model itself
        model(X)
    assert [*plan(model).fallbacks] == [
        "the weight head.weight is 16x16 float64 on cpu; it must be 16x16 float32 on cpu"
    ]
    assert torch.equal(stack.load(made(Stack)).double()(X.double()), made(Stack).double()(X.double()))


def test_hooks_of_all_modules_run(stack: Any) -> None:
    model, seen = stack.load(made(Stack)), []
    hook = register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    try:
        model(X)
    finally:
        hook.remove()
    assert nn.LayerNorm in seen and "there are hooks for all modules" in next(iter(plan(model).fallbacks))
    plan(model).fallbacks.clear()
    model(X)
    assert not plan(model).fallbacks


def test_a_replaced_method_of_a_class_is_noticed(stack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = stack.load(made(Stack))
    model(X)
    monkeypatch.setattr(Layer, "forward", lambda _, x: x * 3)
    monkeypatch.setattr(nn.LayerNorm, "forward", lambda _, x: x * 3)
    assert torch.equal(model(X), made(Stack)(X))
    [why] = plan(model).fallbacks
    assert why.startswith("layers.0.forward is <lambda> code of Python")


def test_a_change_back_runs_the_recorded_forward_again(stack: Any) -> None:
    model = stack.load(made(Stack))
    model.bn.eps = 0.5
    model(X)
    model.bn.eps = float("1e-5")
    model(X)
    assert sum(plan(model).fallbacks.values()) == 1


def test_what_looks_into_a_call_sees_the_operators(stack: Any) -> None:
    model, own = stack.load(made(Stack)), made(Stack)
    with FlopCounterMode(display=False) as found:
        model(X)
    with FlopCounterMode(display=False) as wanted:
        own(X)
    assert found.get_flop_counts()["Stack.head"] == wanted.get_flop_counts()["Stack.head"]
    follows = torch.jit.trace(model, X, check_trace=False)
    assert torch.allclose(follows(X * 2), own(X * 2), atol=1e-6)
    plan(model).fallbacks.clear()
    weights = {"head.weight": torch.ones(WIDTH, WIDTH)}
    called = (torch.func.functional_call(each, weights, (X,)) for each in (model, own))
    assert torch.allclose(*called, atol=1e-6) and not plan(model).fallbacks


def test_an_unchanged_model_is_compared_once(stack: Any) -> None:
    """Later calls compare identities, which is cheap; weights that are changed in place are no change."""
    model = stack.load(made(Stack))
    model(X)
    first = plan(model).snapshots[model]
    for _ in range(3):
        model.head.weight.mul_(2)
        model(X)
    assert plan(model).snapshots[model] is first and not plan(model).fallbacks


@pytest.mark.slow
def test_transformed_calls_run_the_models_own_forward(tmp_path: Path) -> None:
    """A kernel would drop the derivatives."""
    module = functools.partial(nn.LayerNorm, WIDTH)
    models = package(tmp_path, module).load(made(module)), made(module)

    def directional(model: nn.Module) -> torch.Tensor | None:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(X, torch.ones_like(X))
            return forward_ad.unpack_dual(model(dual)).tangent

    found, wanted = map(directional, models)
    assert found is not None and wanted is not None and torch.equal(found, wanted)
    assert torch.equal(*(torch.func.vmap(each)(X) for each in models))
    assert plan(models[0]).fallbacks == {"the call is traced, or its operators are intercepted": 2}


def test_the_signature_is_that_of_the_model(tmp_path: Path) -> None:
    """`generate` reads it, and tracers make placeholders for it."""
    module = functools.partial(nn.LayerNorm, WIDTH)
    model, own = package(tmp_path, module).load(made(module)), made(module)
    assert inspect.signature(model.forward) == inspect.signature(own.forward)
    assert torch.equal(torch.fx.symbolic_trace(model)(X), own(X))


CONFIGS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "heads": (lambda: Stack(heads=8), "layers.0.heads.settings.heads is 8; it must be 4"),
    "layers": (lambda: Stack(layers=3), "the module layers.2 is Layer; it must be missing"),
    **{
        name: (lambda change=change: _changed(change), why)  # type: ignore[misc]
        for name, (change, why) in CHANGES.items()
        if name in ("eps", "a slope", "a scale", "a mode of padding", "a new bias", "a list")
    },
}


def _changed(change: Change) -> nn.Module:
    change(model := Stack())
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_another_config_is_refused(name: str, stack: Any) -> None:
    module, why = CONFIGS[name]
    with pytest.raises(ValueError) as error:
        stack.load(module())
    assert why in str(error.value) and "\n" not in str(error.value)


def test_another_class_of_the_same_name_is_refused(stack: Any) -> None:
    other = type("Stack", (Stack,), {"forward": lambda self, x: Stack.forward(self, x) + 1})
    with pytest.raises(ValueError, match="forward is <lambda> code of Python"):
        stack.load(other())


def test_a_model_may_be_loaded_in_training_mode(stack: Any) -> None:
    model = stack.load(Stack())
    model.eval()(X)
    assert not plan(model).fallbacks


class Aliased:
    """A config that knows its attributes by a second name."""

    def __init__(self) -> None:
        self.n_embd = 2.0

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__("n_embd" if name == "hidden" else name)


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("register", ["register_forward_hook", "register_full_backward_hook"])
def test_hooks_next_to_those_that_compute_a_weight_run(register: str, tmp_path: Path) -> None:
    def module() -> nn.Module:
        return nn.Sequential(weight_norm(nn.Linear(WIDTH, WIDTH)))

    def change(model: Any) -> None:
        getattr(model[0], register)(lambda *given: given[2] * 2 if len(given) == 3 else None)

    loads = package(tmp_path, module)
    check(loads, module, change, "the module 0 has hooks")
    check(loads, module, lambda model: model[0].train(), "the module 0 is in training mode")
    with pytest.raises(ValueError, match="the module 0 has hooks"):
        loads.load(nn.Sequential(spectral_norm(nn.Linear(WIDTH, WIDTH))))
    with pytest.raises(ValueError, match="the module 0 lacks the hooks that compute its weight"):
        loads.load(nn.Sequential(nn.Linear(WIDTH, WIDTH)))


def tied(model: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, model.second.weight)


def _tied() -> nn.Module:
    model: Any = Simple(tied, second=nn.Linear(WIDTH, WIDTH))
    model.second.weight = model.linear.weight
    return model


def cached(model: Any, x: torch.Tensor) -> torch.Tensor:
    if model.mask is None:
        model.mask = torch.full((WIDTH,), 2.0)
    return x * model.mask


HIDDEN: dict[str, tuple[Callable[[], nn.Module], Change, str]] = {
    "a dictionary": (
        lambda: Simple(lambda m, x: x * m.c["a"][1], c={"a": [1, 2]}),
        lambda model: model.c["a"].__setitem__(1, 5),
        "c is {'a': [1, 5]}; it must be {'a': [1, 2]}",
    ),
    "a second name": (
        lambda: Simple(lambda m, x: x * m.c.hidden, c=Aliased()),
        lambda model: setattr(model.c, "n_embd", 5.0),
        "c.hidden is 5.0; it must be 2.0",
    ),
    "a namespace": (
        lambda: Simple(lambda m, x: x * m.c.a, c=SimpleNamespace(a=2)),
        lambda model: setattr(model.c, "a", 5),
        "c.a is 5; it must be 2",
    ),
    "a function": (
        lambda: Simple(lambda m, x: m.c(x), c=functional.relu),
        setting("c", functional.gelu),
        "c is torch._C._nn.gelu; it must be torch.nn.functional.relu",
    ),
    "a partial function": (
        lambda: Simple(lambda m, x: m.c(x), c=functools.partial(torch.mul, other=2)),
        setting("c", functools.partial(torch.mul, other=3)),
        "{'other': 3}]; it must be partial",
    ),
    "a missing attribute": (
        lambda: Simple(lambda m, x: x * getattr(m, "factor", 1)),
        setting("factor", 3),
        "factor is 3; it must be missing",
    ),
    "a module in a list": (
        lambda: Simple(lambda m, x: m.c[0](x), c=[nn.LayerNorm(WIDTH)]),
        lambda model: setattr(model.c[0], "eps", 3.0),
        "c[0].eps is 3.0; it must be 1e-05",
    ),
    "weights of a module in a list": (
        lambda: Simple(lambda m, x: m.c[0](x), c=[nn.Linear(WIDTH, WIDTH)]),
        lambda model: model.c[0].weight.mul_(2),
        "c[0].weight is a tensor of 16x16 float32",
    ),
    "a hook of a module in a list": (
        lambda: Simple(lambda m, x: m.c[0](x), c=[nn.LayerNorm(WIDTH)]),
        lambda model: model.c[0].register_forward_hook(lambda *given: given[2] * 2),
        "the module c[0] has hooks",
    ),
    "tied weights": (
        _tied,
        lambda model: setattr(model.second, "weight", nn.Parameter(torch.ones(WIDTH, WIDTH))),
        "the weight second.weight must be the same tensor as linear.weight",
    ),
    "a buffer's list": (
        lambda: Simple(lambda m, x: x * m.c.tolist()[0], c=nn.Buffer(torch.tensor([2.0]))),
        lambda model: model.c.fill_(4),
        "c is a tensor of 1 float32 with content",
    ),
    "a cache that is emptied": (
        lambda: Simple(cached, mask=None),
        setting("mask", None),
        "the model has no weight mask",
    ),
    "heads of PyTorch's layer": (
        lambda: Simple(lambda m, x: m.c(x), c=nn.TransformerEncoderLayer(WIDTH, 4, batch_first=True)),
        lambda model: setattr(model.c.self_attn, "num_heads", 2),
        "c.self_attn.num_heads is 2; it must be 4",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HIDDEN)
def test_every_kind_of_attribute_is_noticed(name: str, tmp_path: Path) -> None:
    module, change, why = HIDDEN[name]
    check(package(tmp_path, module), module, change, why)


def test_a_cache_may_be_filled_after_loading(tmp_path: Path) -> None:
    loads = package(tmp_path, module := lambda: Simple(cached, mask=None))
    torch.manual_seed(0)
    model = loads.load(module().eval())
    for _ in range(3):
        assert torch.equal(model(X), made(module)(X))
    assert plan(model).fallbacks == {"the model has no weight mask": 1}


def counted(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.calls += 1
    return x


def kept(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.last = x
    return x * 2


def listed(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.seen.append(x.shape)
    return x


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (lambda: Simple(counted, calls=0), "its forward changes the attribute calls"),
        (lambda: Simple(kept), "its forward changes the attribute last"),
        (lambda: Simple(listed, seen=[]), "its forward changes the attribute seen"),
        (lambda: Simple(lambda _, x: x * x.sum().reshape(1).tolist()[0]), "reads numbers from a tensor with"),
    ],
)
def test_a_forward_that_leaves_something_behind_is_refused(
    module: Callable[[], nn.Module], why: str, tmp_path: Path
) -> None:
    with pytest.raises(CaptureError, match=why):
        package(tmp_path, module)


def test_plain_attributes_that_the_forward_sets_are_set(stack: Any) -> None:
    model: Any = stack.load(made(Stack))
    for layer in model.layers:
        layer.rows = 0
    model(X)
    assert [layer.rows for layer in model.layers] == [2, 2] and not plan(model).fallbacks


class Noting(nn.Module):
    """Sets attributes that depend on the way in which it is called."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        self.rows, self.masked = x.shape[0], mask is not None
        return x * 2 if mask is None or bool(mask.all()) else x * mask


def test_each_way_of_calling_sets_its_own_attributes(tmp_path: Path) -> None:
    """Also one that shares its code with another."""

    def at(rows: int) -> InputShape:
        calls: Any = ({}, {"mask": "ones"})
        return InputShape(inputs=lambda _: ([rand(rows, 4)], {}), name=str(rows), calls=calls)

    how: dict[str, Any] = {"device": "cpu", "dtype": "float32", "backward": False}
    found = merge_calls(load_at_shapes("noting", lambda: Noting().eval(), [at(2), at(3)], **how), print)
    assert [len(each.alike) for each in found] == [1, 1]
    rehearse(made := [trace_model(each) for each in found])
    write_package(tmp_path, made, {}, {})
    model: Any = load_package(tmp_path).load(Noting().eval())
    for rows in (3, 2):
        for mask in (torch.ones(rows, 4, dtype=torch.int64), None):
            model(rand(rows, 4), mask)
            assert (model.rows, model.masked) == (rows, mask is not None)
    assert not plan(model).fallbacks


def saved(model: nn.Module) -> nn.Module:
    torch.save(model, memory := io.BytesIO())
    memory.seek(0)
    found: nn.Module = torch.load(memory, weights_only=False)
    return found


@pytest.mark.parametrize(
    "copied",
    [saved, lambda model: pickle.loads(pickle.dumps(model)), copy.copy],
    ids=["save", "pickle", "copy"],
)
def test_a_saved_model_is_the_model_before_loading(
    copied: Callable[[nn.Module], nn.Module], stack: Any
) -> None:
    model = stack.load(made(Stack))
    found = copied(model)
    assert type(found) is Stack and type(model) is not Stack
    assert torch.equal(found(X), made(Stack)(X))


@pytest.mark.slow
def test_a_saved_model_is_read_without_the_package(stack: Any, tmp_path: Path) -> None:
    torch.save(stack.load(made(Stack)), tmp_path / "model.pt")
    torch.save((X, made(Stack)(X)), tmp_path / "tensors.pt")
    code = (
        "import sys, torch; x, wanted = torch.load('tensors.pt')\n"
        "model = torch.load('model.pt', weights_only=False)\n"
        "with torch.no_grad(): assert torch.equal(model(x), wanted)\n"
        "assert not [name for name in sys.modules if name.startswith('optimized')]\n"
    )
    run = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[4])!r})\n{code}"
    subprocess.run([sys.executable, "-c", run], cwd=tmp_path, check=True)


def test_copies_run_the_recorded_forward_on_their_own_weights(stack: Any) -> None:
    model = stack.load(made(Stack))
    model(X)
    copied = copy.deepcopy(model)
    copied.head.weight.fill_(0.5)
    own: Any = made(Stack)
    assert torch.allclose(model(X), own(X), atol=1e-6)
    own.head.weight.fill_(0.5)
    assert torch.allclose(copied(X), own(X), atol=1e-6) and not plan(copied).fallbacks
    copied.bn.eps = 0.5
    copied(X)
    model(X)
    assert plan(model).fallbacks == {"bn.eps is 0.5; it must be 1e-05": 1}
    weights = {name: each + 0 for name, each in copied.state_dict().items()}
    model.load_state_dict(weights, assign=True)
    own.load_state_dict(weights)
    assert torch.allclose(model(X), own(X), atol=1e-6) and sum(plan(model).fallbacks.values()) == 1


@pytest.mark.filterwarnings("ignore")
def test_copies_that_other_tools_change_run_their_own_forward(stack: Any) -> None:
    from torch.ao.quantization import quantize_dynamic

    model = stack.load(made(Stack))
    found, wanted = (quantize_dynamic(each, {nn.Linear}, dtype=torch.qint8) for each in (model, made(Stack)))
    assert torch.equal(found(X), wanted(X)) and sum(plan(model).fallbacks.values()) == 1
    replica = model._replicate_for_data_parallel()
    for name, each in model.named_children():
        setattr(replica, name, each)
    assert torch.allclose(replica(X), model(X), atol=1e-6)


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (X.transpose(0, 1).contiguous().transpose(0, 1), "with strides (16, 32, 1), not (80, 16, 1)"),
        (X.double(), "input is a tensor of 2x5x16 float64 on cpu, not 2x5x16 float32 on cpu"),
        (torch._neg_view(X), "input is a view that negates"),
        (X.as_subclass(type("Named", (torch.Tensor,), {})), "input is a Named, not a plain tensor"),
    ],
)
def test_the_reason_names_what_differs_in_an_argument(tensor: torch.Tensor, why: str, tmp_path: Path) -> None:
    loads = package(tmp_path, module := lambda: nn.LayerNorm(WIDTH))
    model, own = loads.load(made(module)), made(module)
    if tensor.dtype is torch.float32:
        assert torch.equal(model(tensor), own(tensor))
    else:
        with pytest.raises(RuntimeError):
            model(tensor)
    assert [why in each for each in plan(model).fallbacks] == [True]


@pytest.mark.slow
def test_compiled_code_follows_changes(tmp_path: Path) -> None:
    class Read(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            found: torch.Tensor = self.head(self.bn(x))
            return found

    model, own = package(tmp_path, Read).load(made(Read)), made(Read)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    changes = [
        ("", lambda model: None),
        ("bn.eps is 0.5", setting("bn.eps", 0.5)),
        ("", setting("bn.eps", 1e-5)),
        ("heads is 8", lambda model: setattr(model.layers[0].heads.settings, "heads", 8)),
        ("", lambda model: setattr(model.layers[0].heads.settings, "heads", 4)),
        ("training mode", lambda model: model.bn.train()),
        ("", lambda model: model.bn.eval()),
        ("", lambda model: model.layers[0].mask.fill_(3.0)),
        ("head is Lora", put_in(Lora)),
    ]
    for why, change in changes:
        change(model)
        change(own)
        assert torch.allclose(compiled(X), own(X), atol=1e-6)
        assert [why in each for each in plan(model).fallbacks] == [True] * bool(why)
        plan(model).fallbacks.clear()
