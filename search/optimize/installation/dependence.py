"""Finds what a model's forward depends on, and what it changes, by running it once."""

from __future__ import annotations

import collections
import contextlib
import dis
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from search.optimize.extraction.graph import INLINED, CaptureError, weights_of
from search.optimize.installation.state import (
    INTERNAL,
    REGISTRIES,
    VALUES,
    StateReader,
    joined,
    version_of,
)
from search.optimize.models.source import LoadedModel, without_fastpath

UNSEEN = ("tolist", "numpy", "__array__", "__dlpack__")
"""Methods of a tensor that read its numbers without PyTorch's dispatcher."""
DEPTH = 4
"""How deep objects in attributes of objects are watched."""


@dataclass(frozen=True, kw_only=True)
class Dependence:
    """What a forward depends on and leaves behind: `attributes` and `filled` as in `RecordedState`;
    `sets`: plain attributes of modules that it sets, by module, name and value. `plain`: the plain attributes
    among `attributes`, each as a module's name and the expression that follows it."""

    attributes: Mapping[str, Mapping[str, str]]
    filled: Sequence[str]
    sets: Sequence[tuple[str, str, Any]]
    plain: Sequence[tuple[str, str]]


def dependence_of(model: LoadedModel) -> Dependence:
    """Runs the model twice: what it leaves behind in the second run only is not that of another way of
    calling. Raises CaptureError where its forward changes what the generated code cannot change, and what the
    model raises."""
    _run(model)
    owners = _owners(model.module)
    registered = dict(model.module.named_modules())
    before = {path: _marks(each, registered=path in registered) for path, each in owners.items()}
    watch = _Watch(owners)
    with watch.watching():
        _run(model)
    kept = {id(each) for each in weights_of(model.module).values()}
    if any(key not in kept for key in watch.numbers):
        raise CaptureError("its forward reads numbers from a tensor with tolist() or numpy()")
    sets: list[tuple[str, str, Any]] = []
    for path, owner in owners.items():
        after = _marks(owner, registered=path in registered)
        inlined = _set_by_hooks(owner)
        for name in dict.fromkeys([*before[path], *after, *watch.sets[id(owner)]]):
            if name in inlined:
                continue
            if before[path].get(name, ())[:1] != after.get(name, ())[:1]:
                raise CaptureError(f"its forward changes the attribute {joined(path, name)}")
            if name in watch.sets[id(owner)] and name in after and path in registered:
                value = getattr(owner, name)
                sets += [(path, name, value)] if _is_plain(value) else []
    return _described(model.module, watch, sets)


def _run(model: LoadedModel) -> None:
    args, kwargs = model.fresh()
    with without_fastpath(), model.mode():
        model.module(*args, **kwargs)


def _set_by_hooks(owner: Any) -> set[str]:
    """The weights that hooks of a module compute anew in every call."""
    hooks = vars(owner)["_forward_pre_hooks"].values() if isinstance(owner, nn.Module) else ()
    return {each.name for each in hooks if f"{type(each).__module__}:{type(each).__qualname__}" in INLINED}


def _described(module: nn.Module, watch: _Watch, sets: Sequence[tuple[str, str, Any]]) -> Dependence:
    reader = StateReader(module, type(module))
    attributes: dict[str, dict[str, str]] = {}
    filled, plain = [], []
    places = {path: (path, "") for path in reader.owners}
    for path in (waiting := list(reader.owners)):
        owner = reader.owners[path]
        later = _set_by_methods(type(owner))
        hidden = isinstance(owner, nn.Module) and not reader.is_registered(path)
        for name in (*watch.reads.get(id(owner), ()), *(["training"] if hidden else [])):
            value = getattr(owner, name, watch)
            if isinstance(value, nn.Module) and name in vars(owner).get("_modules", {}):
                continue
            if text := reader.text(path, name, exact=id(value) in watch.numbers):
                attributes.setdefault(path, {})[name] = text
                filled += [joined(path, name)] if name in later else []
                base, rest = places[path]
                plain += [(base, f"{rest}.{name}")] if _is_plain(value) else []
        for found in list(reader.owners)[len(waiting) :]:
            base, rest = places[path]
            places[found] = base, f"{rest}{found[len(path) :] if path else f'.{found}'}"
            waiting.append(found)
    return Dependence(attributes=attributes, filled=filled, sets=sets, plain=plain)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str, torch.dtype, torch.device)


def _owners(module: nn.Module) -> dict[str, Any]:
    """The modules, and the objects in their attributes, by path."""
    found: dict[str, Any] = dict(module.named_modules())
    known = {id(each) for each in found.values()}
    level = dict(found)
    for _ in range(DEPTH):
        deeper = {}
        for path, owner in level.items():
            if isinstance(owner, torch.jit.ScriptModule):
                continue
            for name, value in vars(owner).items():
                for place, each in _leaves(value, joined(path, name)) if name not in INTERNAL else ():
                    if id(each) not in known and _is_object(each):
                        known.add(id(each))
                        deeper[place] = each
        found |= deeper
        level = deeper
    return found


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The values in nested containers."""
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple | collections.deque):
        items = list(enumerate(value))
    else:
        yield path, value
        return
    for key, each in items:
        yield from _leaves(each, f"{path}[{key!r}]")


def _is_object(value: Any) -> bool:
    """Whether a value has attributes that a forward may read."""
    others = (*VALUES, torch.Tensor, torch.Generator, type, types.ModuleType, types.FunctionType)
    return hasattr(value, "__dict__") and not isinstance(value, (*others, types.MethodType))


class _Watch:
    """Notes which attributes of the owners a run reads before it sets them, and which it sets: names by the
    owner's id. `numbers`: the tensors whose numbers a run reads other than by operators."""

    def __init__(self, owners: Mapping[str, Any]) -> None:
        self._owners = owners
        self.reads: dict[int, dict[str, None]] = collections.defaultdict(dict)
        self.sets: dict[int, dict[str, None]] = collections.defaultdict(dict)
        self.numbers: dict[int, torch.Tensor] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block, the owners belong to subclasses that note what is read and set. Every attribute
        counts as read where an object cannot change its class."""
        kinds: dict[type, type] = {}
        changed = []
        try:
            for each in self._owners.values():
                own = type(each)
                if isinstance(each, torch.jit.ScriptModule):
                    continue
                try:
                    if own not in kinds:
                        kinds[own] = self._noting(own)
                    object.__setattr__(each, "__class__", kinds[own])
                    changed.append((each, own))
                except TypeError:
                    self.reads[id(each)] = dict.fromkeys(name for name in vars(each) if name not in INTERNAL)
            with self._noting_numbers():
                yield
        finally:
            for each, own in changed:
                object.__setattr__(each, "__class__", own)

    def _noting_numbers(self) -> Any:
        numbers = self.numbers

        class Numbers(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if getattr(func, "__name__", "") in UNSEEN:
                    numbers[id(args[0])] = args[0]
                return func(*args, **(kwargs or {}))

        return Numbers()

    def _noting(self, own: Any) -> Any:
        """A subclass whose attributes are noted. Raises TypeError where there cannot be one."""

        def get(this: Any, name: str) -> Any:
            if name == "__class__":
                return own
            if is_noted(name) and name not in self.sets[id(this)]:
                self.reads[id(this)][name] = None
            return own.__getattribute__(this, name)

        def put(this: Any, name: str, value: Any) -> None:
            if is_noted(name):
                self.sets[id(this)][name] = None
            own.__setattr__(this, name, value)

        ignored = set(INTERNAL)
        if issubclass(own, nn.Module):
            ignored |= {*vars(nn.Module)} - {"forward"}

        def is_noted(name: str) -> bool:
            return not (name.startswith("__") and name.endswith("__")) and name not in ignored

        named = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__slots__": ()}
        return type(own)(
            own.__name__, (_Unregistered, own), {**named, "__getattribute__": get, "__setattr__": put}
        )


class _Unregistered:
    """Hides a subclass from its base class."""

    def __init_subclass__(cls, **_: Any) -> None:
        pass


def _marks(owner: Any, *, registered: bool) -> dict[str, tuple[Any, Any]]:
    """What an owner's attributes are, with their values, which keep ids unique. The generated code changes a
    registered module's tensors in place, as its forward does."""
    found = {}
    for name, value in vars(owner).items():
        if name not in INTERNAL:
            leaves = list(_leaves(value, ""))
            in_place = registered and isinstance(value, torch.Tensor)
            found[name] = [(place, id(each) if in_place else _mark(each)) for place, each in leaves], leaves
    for registry in REGISTRIES if isinstance(owner, nn.Module) else ():
        for name, value in vars(owner)[registry].items():
            found[name] = [("", id(value) if registered else _mark(value))], [value]
    return found


def _mark(value: Any) -> Any:
    if isinstance(value, VALUES):
        return type(value), str(value)
    return (id(value), version_of(value)) if isinstance(value, torch.Tensor) else id(value)


def _set_by_methods(kind: type) -> set[str]:
    """The attributes that a class sets in a method other than its constructor."""
    found: set[str] = set()
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        for name, method in vars(each).items():
            method = inspect.unwrap(method) if callable(method) else getattr(method, "func", None)
            if isinstance(method, types.FunctionType) and name != "__init__":
                found |= _stored(method.__code__)
    return found


def _stored(code: types.CodeType) -> set[str]:
    found = {str(each.argval) for each in dis.get_instructions(code) if each.opname == "STORE_ATTR"}
    return found.union(*(_stored(each) for each in code.co_consts if isinstance(each, types.CodeType)))
