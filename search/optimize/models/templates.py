"""The arguments and results of a call as *templates*: their structure and values in plain JSON types.

This file is copied unchanged into `optimized/`; it needs only torch.

Strings, integers and None stay as they are in a template; everything else is a list that begins with a word:
`["tensor", 0]` is the first tensor, `["float", 0.5]` a number, `["list", …]` a list. What has no such form is
`["other", words]`: a model whose recorded call contains one is refused, and a call that contains one is never
like a recorded one.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import importlib
import inspect
import numbers
import os
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

Template = Any
MOST_ELEMENTS = 4096
"""Larger numpy arrays are data, which a call passes as tensors."""
BUILT_IN = (dict, list, tuple, set, frozenset, bytes, bytearray, Iterator)
"""The contents of objects of subclasses of these are not in their attributes."""
OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type)
FILE = "reference"
"""The name of the module that a file becomes when it is recorded."""
WITH_PATH = ("enum", "mapping", "named", "namedtuple", "node", "object")
"""Words of templates that continue with the path of a class or function."""
REST = "*"
"""The name of positional arguments without a name."""
SAME = "one tensor for several arguments"
"""The name of what a call is known by in addition to its arguments."""


def take_apart(value: Any, tensors: list[torch.Tensor], inside: tuple[int, ...] = ()) -> Template:
    """The template of a value, whose tensors are appended to `tensors`. `inside`: the identities of the
    objects that contain the value."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return ["tensor", len(tensors) - 1]
    kind = type(value)
    if value is None or kind is str or kind is int:
        return value
    if kind is bool:
        return ["bool", value]
    if kind is float:
        return ["float", value if value == value else "nan"]
    if kind is list or kind is tuple:
        return [kind.__name__, *[take_apart(each, tensors, inside) for each in value]]
    if kind is dict:
        return [
            "dict",
            *[
                [take_apart(key, tensors, inside), take_apart(own, tensors, inside)]
                for key, own in value.items()
            ],
        ]
    return _of_class(value, kind, tensors, inside)


def _of_class(value: Any, kind: type[Any], tensors: list[torch.Tensor], inside: tuple[int, ...]) -> Template:
    """The template of a value that is not of a built-in type."""
    if (leaf := _leaf(value, kind)) is not None:
        return leaf
    if id(value) in inside:
        return ["other", f"a {kind.__name__} that contains itself"]
    inside = (*inside, id(value))
    if kind is slice:
        parts = (value.start, value.stop, value.step)
        return ["slice", *[take_apart(each, tensors, inside) for each in parts]]
    path = path_of(kind)
    if path is None:
        return ["other", f"a {kind.__name__}, a class defined inside a function"]
    if kind in pytree.SUPPORTED_NODES:
        children, context = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
        own = take_apart(context, tensors, inside)
        return ["node", path, own, *[take_apart(each, tensors, inside) for each in children]]
    if pytree.is_namedtuple_class(kind):
        return ["namedtuple", path, *[take_apart(each, tensors, inside) for each in value]]
    if isinstance(value, dict):
        content = take_apart(dict(value), tensors, inside)
        attributes = [[name, take_apart(own, tensors, inside)] for name, own in vars(value).items()]
        return ["mapping", path, content, ["object", path, *attributes]]
    names = _attributes(value, kind)
    if names is None:
        return ["other", f"a {kind.__name__}"]
    return ["object", path, *[[name, take_apart(getattr(value, name), tensors, inside)] for name in names]]


def _leaf(value: Any, kind: type[Any]) -> Template | None:
    """The template of a value without parts; None for others."""
    if isinstance(value, enum.Enum):
        known = path_of(kind) is not None and value.name in kind.__members__
        return ["enum", path_of(kind), value.name] if known else ["other", f"the enum's value {value!r}"]
    if isinstance(value, OF_TORCH):
        return ["torch", str(value).removeprefix("torch.")]
    if kind is torch.device:
        return ["device", str(value)]
    if kind is torch.Size:
        return ["size", *map(int, value)]
    if kind is complex:
        return ["complex", repr(value)]
    if kind is range:
        return ["range", value.start, value.stop, value.step]
    if value is Ellipsis:
        return ["ellipsis"]
    if kind is bytes:
        return ["bytes", value.hex()]
    if kind is set or kind is frozenset:
        found: list[torch.Tensor] = []
        members = sorted((take_apart(each, found) for each in value), key=repr)
        return ["other", "a set of tensors"] if found else [kind.__name__, *members]
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__]
    if isinstance(value, FUNCTIONS):
        path = path_of(value)
        return ["other", f"the local function {value.__name__}"] if path is None else ["named", path]
    if kind.__module__.partition(".")[0] == "numpy":
        return _of_numpy(value, kind)
    if isinstance(value, str | numbers.Number | os.PathLike):
        return ["value", path_of(kind), repr(value)]
    return None


def _of_numpy(value: Any, kind: type[Any]) -> Template:
    if not hasattr(value, "dtype"):
        return ["value", f"{kind.__module__}:{kind.__qualname__}", repr(value)]
    if value.dtype.hasobject or value.size > MOST_ELEMENTS:
        return ["other", f"a numpy array of {value.size} elements; pass a tensor"]
    return ["numpy", str(value.dtype), list(value.shape), value.tobytes().hex()]


def _attributes(value: Any, kind: type[Any]) -> list[str] | None:
    """The names of an object's attributes, in order; None where they are not all of it."""
    if isinstance(value, (nn.Module, torch.Generator, *BUILT_IN)) or callable(value):
        return None
    fields = [each.name for each in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    if not fields and not hasattr(value, "__dict__"):
        return None
    names = [*fields, *getattr(value, "__dict__", {})]
    return [name for name in dict.fromkeys(names) if hasattr(value, name)]


def path_of(thing: Any) -> str | None:
    """The place of a class or function, as `module:name`; None for one defined inside a function."""
    module, name = getattr(thing, "__module__", None), thing.__qualname__
    if module is None:  # a function of torch's
        module, name = "torch", thing.__name__
        return f"{module}:{name}" if getattr(torch, name, None) is thing else None
    return None if "<" in name else f"{module}:{name}"


def hooks_of(model: nn.Module) -> dict[str, list[str]]:
    """The classes or functions of the hooks of each submodule. The model's own hooks run around its forward,
    whether recorded or not."""
    found = {name: hooks_in(each) for name, each in model.named_modules() if name}
    return {name: hooks for name, hooks in found.items() if hooks}


def hooks_in(module: nn.Module) -> list[str]:
    """The classes or functions of the hooks of a module itself."""
    found = []
    for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
        what: Any = hook if hasattr(hook, "__qualname__") else type(hook)
        found.append(f"{what.__module__}:{what.__qualname__}")
    return found


def finder(model: nn.Module) -> Callable[[str], Any]:
    """A function that finds a class or function by its path, first where the model's modules are defined: the
    file that was recorded may have another name here. Raises LookupError."""
    kinds = dict.fromkeys(kind for each in model.modules() for kind in type(each).__mro__)
    forwards = [inspect.unwrap(vars(kind)["forward"]) for kind in kinds if "forward" in vars(kind)]
    near = [each.__globals__ for each in forwards if hasattr(each, "__globals__")]

    def find(path: str) -> Any:
        module, _, name = path.partition(":")
        spaces = list(near)
        if not module.startswith(FILE):
            try:
                spaces.insert(0, vars(importlib.import_module(module)))
            except ImportError:
                pass
        for space in spaces:
            first, *rest = name.split(".")
            found = space.get(first)
            for each in rest:
                found = getattr(found, each, None)
            if found is not None and getattr(found, "__name__", None) == name.rpartition(".")[2]:
                return found
        raise LookupError(f"{name} of {module} was not found where the model is defined")

    return find


def localized(template: Template, find: Callable[[str], Any]) -> Template:
    """The template with the paths that its classes and functions have in this process."""
    if not isinstance(template, list):
        return template
    word, *rest = template
    head = [word]
    if word in WITH_PATH:
        try:
            head.append(path_of(find(rest[0])))
        except LookupError:  # no call can have it
            head.append(rest[0])
        rest = rest[1:]
    if word in ("call", "dict", "object"):
        return [*head, *[[localized(name, find), localized(each, find)] for name, each in rest]]
    if word in ("list", "tuple", "set", "frozenset", "slice", "node", "namedtuple", "mapping"):
        return [*head, *[localized(each, find) for each in rest]]
    return [*head, *rest]


def maker(template: Template, find: Callable[[str], Any]) -> Callable[[Sequence[Any]], Any]:
    """A function that makes the template's value from tensors. Raises LookupError for an unknown class, and
    ValueError for what cannot be made."""
    if not isinstance(template, list):
        return lambda tensors: template
    word, *rest = template
    if word == "tensor":
        return lambda tensors: tensors[rest[0]]
    if word == "dict":
        pairs = [(maker(key, find)(()), maker(each, find)) for key, each in rest]
        return lambda tensors: {key: make(tensors) for key, make in pairs}
    if word == "object":
        kind, named = find(rest[0]), [(name, maker(each, find)) for name, each in rest[1:]]
        return lambda tensors: _object(kind, {name: make(tensors) for name, make in named})
    if word == "mapping":
        kind, content = find(rest[0]), maker(rest[1], find)
        named = [(name, maker(each, find)) for name, each in rest[2][2:]]
        return lambda tensors: _mapping(kind, content(tensors), {name: make(tensors) for name, make in named})
    if word in ("list", "tuple"):
        parts = [maker(each, find) for each in rest]
        if word == "list":
            return lambda tensors: [make(tensors) for make in parts]
        return lambda tensors: tuple([make(tensors) for make in parts])
    if word == "namedtuple":
        kind, parts = find(rest[0]), [maker(each, find) for each in rest[1:]]
        return lambda tensors: kind(*[make(tensors) for make in parts])
    if word == "node":
        kind, parts = find(rest[0]), [maker(each, find) for each in rest[2:]]
        if kind not in pytree.SUPPORTED_NODES:
            raise LookupError(f"{rest[0]} is not registered as a pytree")
        unflatten, context = pytree.SUPPORTED_NODES[kind].unflatten_fn, maker(rest[1], find)(())
        return lambda tensors: unflatten([make(tensors) for make in parts], context)
    constant = _constant(word, rest, find)
    return lambda tensors: constant


def _object(kind: Any, attributes: Mapping[str, Any]) -> Any:
    new = kind.__new__ if issubclass(kind, types.SimpleNamespace) else object.__new__
    made = new(kind)
    for name, value in attributes.items():
        object.__setattr__(made, name, value)  # also of a frozen dataclass
    return made


def _mapping(kind: Any, content: Mapping[Any, Any], attributes: Mapping[str, Any]) -> Any:
    """An object of a subclass of dict, whose constructor and methods may do anything."""
    made = kind.__new__(kind)
    base = collections.OrderedDict if issubclass(kind, collections.OrderedDict) else dict
    for key, value in content.items():
        base.__setitem__(made, key, value)
    vars(made).update(attributes)
    return made


def _constant(word: str, rest: Sequence[Any], find: Callable[[str], Any]) -> Any:
    """The value of a template without parts. Raises ValueError for one that only a call may contain."""
    parts = [maker(each, find)(()) for each in rest] if word in ("set", "frozenset", "slice") else rest
    simple: Mapping[str, Callable[[], Any]] = {
        "bool": lambda: rest[0],
        "float": lambda: float(rest[0]),
        "complex": lambda: complex(rest[0]),
        "torch": lambda: getattr(torch, rest[0]),
        "device": lambda: torch.device(rest[0]),
        "size": lambda: torch.Size(rest),
        "range": lambda: range(*rest),
        "ellipsis": lambda: Ellipsis,
        "bytes": lambda: bytes.fromhex(rest[0]),
        "set": lambda: set(parts),
        "frozenset": lambda: frozenset(parts),
        "slice": lambda: slice(*parts),
        "enum": lambda: find(rest[0])[rest[1]],
        "named": lambda: find(rest[0]),
        "module": lambda: importlib.import_module(rest[0]),
    }
    if word not in simple:
        raise ValueError(words_of([word, *rest]))
    return simple[word]()


def words_of(template: Template) -> str:
    """A template in words."""
    if not isinstance(template, list):
        return repr(template)
    word, *rest = template
    if word == "tensor":
        return "a tensor"
    if word in ("list", "tuple", "dict", "set", "frozenset"):
        return f"a {word} of {len(rest)}"
    if word in ("mapping", "namedtuple", "node", "object"):
        return f"a {rest[0].partition(':')[2]}"
    if word == "torch":
        return f"torch.{rest[0]}"
    if word == "enum":
        return f"{rest[0].partition(':')[2]}.{rest[1]}"
    if word == "numpy":
        return f"a numpy {rest[0]} of shape {tuple(rest[1])}" if rest[1] else f"a numpy {rest[0]}"
    if word in ("bool", "float", "device", "complex", "bytes", "module", "other"):
        return str(rest[0])
    if word in ("named", "value"):
        return str(rest[-1])
    return f"{word}({', '.join(map(words_of, rest))})"


def parts_of(template: Template, at: str) -> Iterator[tuple[str, Template]]:
    """The parts of a template, each with its name: `at` is that of the whole."""
    if not isinstance(template, list):
        return
    word, *rest = template
    if word == "call":
        yield from ((_name(name), each) for name, each in rest)
    elif word in ("list", "tuple"):
        yield from ((f"{at}[{number}]", each) for number, each in enumerate(rest))
    elif word == "namedtuple":
        yield from ((f"{at}[{number}]", each) for number, each in enumerate(rest[1:]))
    elif word == "dict":
        yield from ((f"{at}[{words_of(key)}]", each) for key, each in rest)
    elif word == "mapping":
        yield from parts_of(rest[1], at)
        yield from parts_of(rest[2], at)
    elif word == "object":
        yield from ((f"{at}.{name}", each) for name, each in rest[1:])
    elif word == "node":
        yield from ((f"{at}[{number}]", each) for number, each in enumerate(rest[2:]))
        yield f"{at}'s structure", rest[1]
    elif word == "slice":
        yield from zip((f"{at}.start", f"{at}.stop", f"{at}.step"), rest, strict=True)


def _name(name: str) -> str:
    return "the positional arguments" if name == REST else name


def without_form(template: Template, at: str) -> str:
    """What in the template has no form in JSON, such as `mask is a Generator`; "" for nothing."""
    if isinstance(template, list) and template[:1] == ["other"]:
        return f"{at} is {template[1]}"
    return next(filter(None, (without_form(each, name) for name, each in parts_of(template, at))), "")


def differences(recorded: Template, found: Template, at: str = "") -> Iterator[str]:
    """How a call differs from a recorded one, a phrase for each difference."""
    if recorded == found:
        return
    before, now = dict(parts_of(recorded, at)), dict(parts_of(found, at))
    if not (before or now) or _head(recorded) != _head(found):
        yield f"{at} is {words_of(found)}, not {words_of(recorded)}"
        return
    for name in dict.fromkeys([*before, *now]):
        if name == SAME:
            yield "other arguments are one and the same tensor"
        elif name not in now:
            yield f"{name} is left out; it was {words_of(before[name])}"
        elif name not in before:
            yield f"{name} is given ({words_of(now[name])}); it was left out"
        else:
            yield from differences(before[name], now[name], name)


def _head(template: Template) -> Template:
    """The kind of a template, and its class if it has one."""
    return template[: 2 if template[0] in WITH_PATH else 1] if isinstance(template, list) else None


def tensor_names(template: Template, at: str = "") -> dict[int, str]:
    """The name of each tensor, by its number."""
    if isinstance(template, list) and template[:1] == ["tensor"]:
        return {template[1]: at}
    found: dict[int, str] = {}
    for name, each in parts_of(template, at):
        found |= tensor_names(each, name)
    return found


class Signature:
    """The parameters of a forward: its calls have the same template however their arguments are passed.

    Args:
        parameters: the name of each parameter that has one, in order, with its default's template, if any.
    """

    def __init__(self, parameters: Sequence[Sequence[Any]], *, any_name: bool = False) -> None:
        self.parameters = [list(each) for each in parameters]
        self.names = tuple(each[0] for each in parameters if each[1])
        """Names of the parameters that may be passed by position, in order."""
        self._any_name = any_name
        """Whether the forward takes keyword arguments of any name."""
        self._order = tuple(each[0] for each in parameters)
        self._known = frozenset(self._order)
        self._defaults = {each[0]: each[2] for each in parameters if len(each) > 2}

    @classmethod
    def of(cls, forward: Callable[..., Any]) -> Signature:
        """That of a method of a model."""
        kinds = inspect.Parameter
        found = []
        try:
            parameters = list(inspect.signature(forward).parameters.values())
        except (TypeError, ValueError):  # of a compiled method, such as TorchScript's
            return cls([], any_name=True)
        for each in parameters:
            if each.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD):
                continue
            tensors: list[torch.Tensor] = []
            default = [] if each.default is each.empty else [take_apart(each.default, tensors)]
            if tensors or any(without_form(own, each.name) for own in default):
                default = []  # no call is known to pass the same
            found.append([each.name, each.kind is not kinds.KEYWORD_ONLY, *default])
        return cls(found, any_name=any(each.kind is kinds.VAR_KEYWORD for each in parameters))

    def takes(self, name: str) -> bool:
        """Whether the forward has this parameter, or any."""
        return self._any_name or name in self._known

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Template, list[torch.Tensor]]:
        """The template of a call and its tensors, in the order of the parameters. Arguments that equal their
        default are left out."""
        given = dict(zip(self.names, args, strict=False))
        given.update(kwargs)
        names = [name for name in self._order if name in given]
        if len(names) < len(given):
            names += sorted(name for name in given if name not in self._known)
        tensors: list[torch.Tensor] = []
        template: list[Any] = ["call"]
        for name in names:
            own = take_apart(given[name], tensors)
            if name not in self._defaults or own != self._defaults[name]:
                template.append([name, own])
        if len(args) > len(self.names):
            template.append([REST, take_apart(list(args[len(self.names) :]), tensors)])
        if not torch.compiler.is_compiling():
            places = [id(each) for each in tensors]
            if len({*places}) < len(places):  # one tensor several times
                template.append([SAME, ["same", *[places.index(each) for each in places]]])
        return template, tensors
