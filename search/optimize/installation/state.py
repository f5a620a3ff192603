"""The state of a model that its recorded forward depends on: classes, hooks, attributes and weights.

This file is copied unchanged into `optimized/`; it needs only torch.
"""

from __future__ import annotations

import collections
import ctypes
import enum
import functools
import hashlib
import numbers
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import PurePath
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as every_module

from .templates import hooks_in

INTERNAL = frozenset(vars(nn.Module()))
"""The attributes that PyTorch keeps in every module."""
MISSING, EMPTY, SHARED, CONTENT = "missing", ("[]", "{}"), ", the one of ", " with content "
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
REGISTRIES = ("_parameters", "_buffers", "_modules")
CODE = f"code of Python {sys.version_info.major}.{sys.version_info.minor}"
"""Code is compared only within one version of Python."""
FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, staticmethod, classmethod)
VALUES = (
    *(type(None), bool, str, bytes, numbers.Number, enum.Enum, PurePath, range, slice),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
"""Values that are equal where their texts are equal."""
PLAIN_TENSORS = (torch.Tensor, nn.Parameter, nn.Buffer)
GLOBAL_HOOKS = tuple(
    getattr(every_module, f"_global_{kind}_hooks")
    for kind in ("forward", "forward_pre", "backward", "backward_pre")
)
_NOTHING: Any = object()
_CHEAP = (
    *(torch.Tensor.data_ptr, torch.Tensor.numel, torch.Tensor.is_contiguous),
    *(attrgetter("dtype"), attrgetter("requires_grad")),
)
"""What changes when a weight's data is replaced, or its gradient is asked for; its shape takes longer to read
than all of these."""


class OtherStateError(ValueError):
    """The model differs from the recorded one; the message says how, in one line."""


@dataclass(frozen=True, kw_only=True)
class RecordedState:
    """What the recorded forward depends on.

    `modules`: the class of each module by name; `hooks`: of those with hooks that are part of the code, the
    hooks' classes. `attributes`: by the path of a module, or of an object in its
    attributes, the text of each attribute that the forward reads. `filled`: those that the model may set
    after it is made. `weights`: shape, dtype, strides and device type of each weight that the code reads.
    `tied`: other names of these weights. `device`: where the model was recorded. `trains`: whether it was in
    training mode; `frozen`: the weights that had no gradients then.
    """

    modules: Mapping[str, str]
    hooks: Mapping[str, Sequence[str]]
    attributes: Mapping[str, Mapping[str, str]]
    filled: Collection[str]
    weights: Mapping[str, Sequence[Any]]
    tied: Mapping[str, str]
    device: torch.device
    trains: bool = False
    frozen: Collection[str] = ()

    def compare(self, model: nn.Module, own: type, *, loading: bool = False) -> Snapshot:
        """Returns the model's state. Raises OtherStateError for a model whose forward must run instead.

        `own`: the model's class before loading. `loading`: ignore what may still change, such as the mode and
        the device.
        """
        reader = StateReader(model, own)
        self._compare_modules(reader, loading)
        self._compare_weights(reader, loading)
        for path in self.attributes:
            self._compare_attributes(reader, path, path, loading)
        self._compare_calls(reader, loading)
        return reader.snapshot(self.trains)

    def compare_modules(self, model: nn.Module) -> None:
        """Raises OtherStateError for a model with modules of other classes, or with other hooks."""
        self._compare_modules(StateReader(model, type(model)), loading=True)

    def _compare_attributes(self, reader: StateReader, path: str, recorded: str, loading: bool) -> None:
        """Compares the owner at a path with the recorded one at a path."""
        for name, text in self.attributes.get(recorded, {}).items():
            where, found = joined(path, name), reader.text(path, name, exact=CONTENT in text)
            alike = found.partition(SHARED)[0] == text.partition(SHARED)[0]
            if found == text or (SHARED in found and alike):
                if path != recorded:
                    self._compare_attributes(reader, where, joined(recorded, name), loading)
            elif SHARED in text and alike:  # here, two objects are not the same one
                self._compare_attributes(reader, where, text.partition(SHARED)[2], loading)
            elif not same_code(found, text) and not (loading and self._may_be_filled(where, found, text)):
                raise OtherStateError(f"{where} is {found}; it must be {text}")

    def _may_be_filled(self, where: str, found: str, text: str) -> bool:
        """Whether the attribute may still become equal to the recorded one, in a forward or by a move."""
        moves = all(each.strip("'").partition(":")[0] in ("cpu", "cuda") for each in (found, text))
        unset = found == "None" and text.startswith("a tensor")
        return where in self.filled or found in EMPTY or moves or unset

    def _compare_modules(self, reader: StateReader, loading: bool) -> None:
        found = {name: type(each).__name__ for name, each in reader.modules() if name}
        for name in {**self.modules, **found}:
            if found.get(name) != self.modules.get(name):
                raise OtherStateError(
                    f"the module {name} is {found.get(name, MISSING)}; "
                    f"it must be {self.modules.get(name, MISSING)}"
                )
        self._compare_calls(reader, loading)

    def _compare_calls(self, reader: StateReader, loading: bool) -> None:
        """Compares modes and hooks."""
        if any(GLOBAL_HOOKS) and not loading:
            raise OtherStateError("there are hooks for all modules, which would not run")
        for name, each in reader.modules():
            if name and self._has_other_hooks(name, each):
                has = has_hooks(vars(each))
                why = "has hooks, which would not run" if has else "lacks the hooks that compute its weight"
                raise OtherStateError(f"the module {name} {why}")
            if each.training is not self.trains and not loading and reader.is_registered(name):
                mode = "training" if each.training else "eval"
                raise OtherStateError(f"the module {name or 'itself'} is in {mode} mode")

    def _has_other_hooks(self, name: str, module: nn.Module) -> bool:
        own = vars(module)
        if name not in self.hooks:
            return has_hooks(own)
        backward = own["_backward_hooks"] or own["_backward_pre_hooks"]
        return bool(backward) or hooks_in(module) != self.hooks[name]

    def _compare_weights(self, reader: StateReader, loading: bool) -> None:
        for name, (shape, dtype, strides, device) in self.weights.items():
            tensor = reader.weight(name)
            if tensor is None and loading and (name in self.filled or reader.is_unset(name)):
                continue
            if tensor is None:
                raise OtherStateError(f"the model has no weight {name}")
            where = self.device if device == self.device.type else torch.device(device)
            expected = f"{sizes(shape)} {dtype} on {where}"
            wrong = list(tensor.shape) != shape or str(tensor.dtype) != f"torch.{dtype}"
            if wrong or (tensor.device != where and not loading):
                raise OtherStateError(f"the weight {name} is {words(tensor)}; it must be {expected}")
            if loading:
                continue
            if type(tensor) not in PLAIN_TENSORS or tensor.layout is not torch.strided:
                raise OtherStateError(f"the weight {name} is a {type(tensor).__name__} of {tensor.layout}")
            if steps(shape, tensor.stride()) != steps(shape, strides):
                raise OtherStateError(
                    f"the weight {name} has strides {tensor.stride()}; it must have {tuple(strides)}"
                )
            if name in self.frozen and tensor.requires_grad:
                raise OtherStateError(f"the weight {name} needs a gradient; it was recorded without one")
        for name, first in self.tied.items():
            if reader.weight(name) is not reader.weight(first):
                raise OtherStateError(f"the weight {name} must be the same tensor as {first}")


class Snapshot:
    """A model's state when it was last compared: where values were found, and the values."""

    def __init__(self, found: _Found, trains: bool) -> None:
        self._found, self._trains = found, trains
        self._modules = [each for each in found.modules if not has_hooks(each)]
        hooked = [each for each in found.modules if has_hooks(each)]
        self._hooked = [(each, {name: dict(each[name]) for name in HOOKS}) for each in hooked]
        self._types = list(map(type, found.owners))
        self._sizes = list(map(len, found.sized))
        self._weights = [list(map(read, found.weights)) for read in _CHEAP]

    def is_current(self, model: nn.Module) -> bool:
        """Whether the model still has this state. It is cheap, because it compares identities."""
        found, trains = self._found, self._trains
        if any(GLOBAL_HOOKS):
            return False
        for own in self._modules:
            if (
                own["training"] is not trains
                or own["_forward_hooks"]
                or own["_forward_pre_hooks"]
                or own["_backward_hooks"]
                or own["_backward_pre_hooks"]
            ):  # written out, because a function would take twice as long
                return False
        for own, hooks in self._hooked:
            if own["training"] is not trains or any(own[name] != each for name, each in hooks.items()):
                return False
        try:
            for place, key, value in found.values:
                if place[key] is not value:
                    return False
        except (KeyError, IndexError):
            return False
        for place, key in found.absent:
            if key in place:
                return False
        if any(map(has_hooks, found.hidden)):
            return False
        return (
            list(map(type, found.owners)) == self._types
            and list(map(len, found.sized)) == self._sizes
            and [list(map(read, found.weights)) for read in _CHEAP] == self._weights
            and all(each == copied for each, copied in found.contents)
            and all(version_of(each) == version for each, version in found.versions)
            and all(
                getattr(model if owner is None else owner, name, _NOTHING) is value
                for owner, name, value in found.computed
            )
        )


class _Found:
    """What decides a model's state. `modules`: the dictionaries of the submodules; `hidden`: those of modules
    in other attributes. `values`: a mapping or list, a key, and the value there. `absent`: a mapping and a
    key that it lacks. `computed`: an object (None: the model), an attribute that it computes, and its value.
    `contents`: a container of plain values and its copy. `sized`: containers of other values. `versions`:
    tensors whose numbers count."""

    def __init__(self) -> None:
        self.modules: list[dict[str, Any]] = []
        self.hidden: list[dict[str, Any]] = []
        self.owners: list[Any] = []
        self.values: list[tuple[Any, Any, Any]] = []
        self.absent: list[tuple[Any, str]] = []
        self.computed: list[tuple[Any, str, Any]] = []
        self.contents: list[tuple[Any, Any]] = []
        self.sized: list[Any] = []
        self.versions: list[tuple[torch.Tensor, int | None]] = []
        self.weights: list[torch.Tensor] = []


class StateReader:
    """Describes attributes of a model by texts, and notes what decides them. `owners`: the modules by name,
    and objects in attributes by path, as far as they were described."""

    def __init__(self, model: nn.Module, own: type) -> None:
        self.owners: dict[str, Any] = dict(model.named_modules(remove_duplicate=False))
        self._model, self._own, self._found = model, own, _Found()
        self._registered = frozenset(self.owners)
        self._submodules = {id(each) for each in self.owners.values()} - {id(model)}
        self._paths = {id(each): name for name, each in reversed(self.owners.items())}
        self._weights: dict[int, str] = {}
        self._watched: set[tuple[int, Any]] = set()
        self._members: dict[type, Mapping[str, Any]] = {}
        for name, each in self.owners.items():
            self._add_module(each)
            for registry in REGISTRIES[:2]:
                for key, tensor in vars(each)[registry].items():
                    self._weights.setdefault(id(tensor), joined(name, key))

    def snapshot(self, trains: bool) -> Snapshot:
        """The state, as far as it was described; `trains`: the mode of the modules."""
        return Snapshot(self._found, trains)

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """All modules, also those that are only found in attributes."""
        return ((name, each) for name, each in self.owners.items() if isinstance(each, nn.Module))

    def is_registered(self, path: str) -> bool:
        """Whether a path is that of a module's name."""
        return path in self._registered

    def is_unset(self, name: str) -> bool:
        """Whether an attribute of a module is None, unlike a parameter or buffer that is None."""
        path, _, key = name.rpartition(".")
        return path in self._registered and vars(self.owners[path]).get(key, _NOTHING) is None

    def weight(self, name: str) -> torch.Tensor | None:
        """A tensor in an attribute of a module; None where the model has none of this name."""
        path, _, key = name.rpartition(".")
        own = vars(self.owners[path]) if path in self.owners else {}
        for place in (own, *(own.get(registry, {}) for registry in REGISTRIES[:2])):
            if isinstance(tensor := place.get(key), torch.Tensor):
                self._watch(place, key)
                self._found.weights.append(tensor)
                return tensor
        return None

    def text(self, path: str, name: str, *, exact: bool) -> str:
        """The text of an attribute; "" for a property, which follows from other attributes. `exact`: whether
        the numbers in a module's tensor are part of it."""
        if path not in self.owners:
            return MISSING
        found = self._find(self.owners[path], name)
        if isinstance(found, torch.Tensor) and not exact and path in self._registered:
            return _tensor_text(found)
        return self._text(found, joined(path, name), exact=exact)

    def _find(self, owner: Any, name: str) -> Any:
        """An attribute; a method or property as the class has it; _NOTHING where it is missing."""
        own = getattr(owner, "__dict__", {})
        if name in own:
            self._watch(own, name)
            return own[name]
        self._found.absent.append((own, name))
        for registry in REGISTRIES if isinstance(owner, nn.Module) else ():
            if name in own[registry]:
                self._watch(own[registry], name)
                return own[registry][name]
        kind = self._own if owner is self._model else type(owner)
        for each in kind.__mro__:
            if name in vars(each):
                return self._member(owner, each, name)
        computes: Any = getattr(kind, "__getattr__", nn.Module.__getattr__)
        finds: Any = kind.__getattribute__
        if computes is not nn.Module.__getattr__ or finds is not object.__getattribute__:
            return self._compute(owner, name)
        if isinstance(owner, nn.Module):
            self._found.absent += [(own[registry], name) for registry in REGISTRIES]
        return _NOTHING

    def _member(self, owner: Any, kind: type, name: str) -> Any:
        """An attribute that a class has."""
        members = self._members.setdefault(kind, vars(kind))
        self._watch(members, name)
        found = members[name]
        if isinstance(found, functools.cached_property):
            return getattr(owner, name)
        if isinstance(found, (property, *FUNCTIONS)) or not hasattr(type(found), "__get__"):
            return found
        return self._compute(owner, name)

    def _compute(self, owner: Any, name: str) -> Any:
        found = getattr(owner, name, _NOTHING)
        if found is not _NOTHING:
            self._found.computed.append((None if owner is self._model else owner, name, found))
        return found

    def _text(self, value: Any, path: str, *, exact: bool = False) -> str:
        if value is _NOTHING:
            return MISSING
        if isinstance(value, property):
            return ""
        if isinstance(value, VALUES):
            return value_text(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, exact)
        if isinstance(value, list | tuple | collections.deque):
            return f"[{', '.join(self._items(value, enumerate(value), path))}]"
        if isinstance(value, Mapping):
            texts = zip(value, self._items(value, value.items(), path), strict=True)
            return f"{{{', '.join(f'{value_text(key)}: {text}' for key, text in texts)}}}"
        if isinstance(value, set | frozenset):
            self._found.contents.append((value, frozenset(value)))
            return f"{{{', '.join(sorted(self._text(each, path) for each in value))}}}"
        if isinstance(value, functools.partial):
            return f"partial {self._text([value.func, value.args, value.keywords], path)}"
        if isinstance(value, type | types.ModuleType):
            return value.__name__
        if isinstance(value, FUNCTIONS):
            return function_text(value)
        if hasattr(value, "__array_interface__"):
            return f"an array of {sizes(value.shape)} {value.dtype} {_digest(value.tobytes())}"
        return self._object(value, path)

    def _items(self, container: Any, items: Iterable[tuple[Any, Any]], path: str) -> list[str]:
        listed = list(items)
        plain = all(isinstance(each, VALUES) for _, each in listed)
        if plain and isinstance(container, list | Mapping):
            copied = list(container) if isinstance(container, list) else dict(container)
            self._found.contents.append((container, copied))
        elif not isinstance(container, tuple):
            self._found.sized.append(container)
            for key, _ in listed:
                self._watch(container, key)
        return [self._text(each, f"{path}[{key!r}]") for key, each in listed]

    def _tensor(self, tensor: torch.Tensor, exact: bool) -> str:
        if id(tensor) in self._weights and not exact:
            return f"the weight {self._weights[id(tensor)]}"
        self._found.versions.append((tensor, version_of(tensor)))
        return f"{_tensor_text(tensor)}{CONTENT}{_content(tensor)}"

    def _object(self, value: Any, path: str) -> str:
        """An object by its class, and by the path where it was found before."""
        kind, first = type(value).__name__, self._paths.setdefault(id(value), path)
        if first in self._registered:
            return f"the module {first or 'itself'}"
        if slots := _slots(value):
            found = ((name, self._compute(value, name)) for name in slots)
            return f"{kind}({', '.join(f'{name}={self._text(each, path)}' for name, each in found)})"
        self.owners[path] = value
        if first != path:
            return f"{kind}{SHARED}{first}"
        if isinstance(value, nn.Module):
            self._add_module(value)
        else:
            self._found.owners.append(value)
        return kind

    def _add_module(self, module: nn.Module) -> None:
        own = vars(module)
        if module is not self._model:
            self._found.owners.append(module)
        if isinstance(module, torch.jit.ScriptModule):
            return
        if id(module) in self._submodules:
            self._found.modules.append(own)
        elif module is not self._model:
            self._found.hidden.append(own)
        if children := own["_modules"]:
            self._watch(own, "_modules")
            self._found.sized.append(children)
            for name in children:
                self._watch(children, name)

    def _watch(self, place: Any, key: Any) -> bool:
        """Notes what is at the place; returns false where it already was noted."""
        if (id(place), key) in self._watched:
            return False
        self._watched.add((id(place), key))
        self._found.values.append((place, key, place[key]))
        return True


def _slots(value: Any) -> list[str]:
    """The attributes of an object without a dictionary."""
    if hasattr(value, "__dict__"):
        return []
    listed = (vars(each).get("__slots__", ()) for each in type(value).__mro__)
    return [name for each in listed for name in ([each] if isinstance(each, str) else each)]


def joined(path: str, name: str) -> str:
    """The path of an attribute."""
    return f"{path}.{name}" if path else name


def same_code(found: str, expected: str) -> bool:
    """Whether two texts describe a function of one name in different versions of Python."""
    (name, _, code), (own, _, recorded) = found.partition(" code of "), expected.partition(" code of ")
    return bool(code and recorded) and name == own and code.split()[:2] != recorded.split()[:2]


def has_hooks(own: Mapping[str, Any]) -> bool:
    """Whether a module with this dictionary has hooks that run when it is called."""
    return any(own[name] for name in HOOKS)


def value_text(value: Any) -> str:
    """A plain value's text: equal numbers of one kind have one text."""
    if isinstance(value, bool | enum.Enum):
        return str(value)
    if isinstance(value, numbers.Integral):
        return repr(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))
    return repr(value) if isinstance(value, str | bytes) else str(value)


def function_text(function: Any) -> str:
    """A function by its name; with a hash of its code unless it is PyTorch's or built in."""
    function = getattr(function, "__func__", function)
    module = getattr(function, "__module__", None) or ""
    if not isinstance(function, types.FunctionType) or module.partition(".")[0] == "torch":
        return f"{module}.{getattr(function, '__qualname__', function)}".removeprefix(".")
    found = []
    while isinstance(function, types.FunctionType):
        cells = [each.cell_contents for each in function.__closure__ or () if _is_filled(each)]
        given = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *cells]
        found += [_code(function.__code__), *(value_text(each) for each in given if isinstance(each, VALUES))]
        name, function = function.__name__, getattr(function, "__wrapped__", None)
    return f"{name} {CODE} {_digest(repr(found).encode())}"


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@functools.lru_cache(4096)
def _code(code: types.CodeType) -> str:
    """What code does, without its place in a file."""
    found = [code.co_code.hex(), repr(code.co_names), repr(code.co_varnames), repr(code.co_freevars)]
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            found.append(_code(each))
        else:
            found.append(repr(sorted(map(repr, each)) if isinstance(each, frozenset) else each))
    return _digest(repr(found).encode())


def version_of(tensor: torch.Tensor) -> int | None:
    """How often the tensor was changed in place; None where that is not counted."""
    return None if tensor.is_inference() else tensor._version


def _tensor_text(tensor: torch.Tensor) -> str:
    """A tensor without its device, which may change after loading."""
    return f"a tensor of {sizes(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def words(tensor: torch.Tensor) -> str:
    """A tensor's sizes, dtype and device."""
    return f"{sizes(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"


def sizes(shape: Sequence[int]) -> str:
    """Sizes as text."""
    return "x".join(map(str, shape)) or "one element"


def steps(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The strides that matter."""
    return [step for size, step in zip(shape, strides, strict=True) if size > 1]


def _content(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided or tensor.is_meta:
        return ""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return _digest(ctypes.string_at(plain.data_ptr(), plain.nbytes))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
