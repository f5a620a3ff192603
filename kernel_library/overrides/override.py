"""Enables and disables overrides, for the whole process.

Torch has one implementation of an operator's form per device, so all enabled overrides share one registration
of the operator. Of nested overrides the inner one is tried first, and the original last.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from kernel_library.overrides.compiled import KEY, Tracer, kernel_operator
from kernel_library.overrides.counts import Count, Tallies, table
from kernel_library.overrides.dispatcher import Dispatcher, Layer
from kernel_library.overrides.gradients import AutogradDispatcher
from kernel_library.overrides.kernels import KernelSource
from kernel_library.overrides.operators import Operator, schema_name

_LOCK = threading.RLock()
_REGISTERED: dict[str, _Registration] = vars(torch.library).setdefault("_kernel_overrides", {})
"""Registrations by operator name. Stored in torch's module, because copies of this module in exported
packages must share them."""


class Override:
    """Kernels that replace operators within a `with` statement, or between `enable()` and `disable()`, in all
    threads."""

    def __init__(self, sources: Mapping[Operator, KernelSource]) -> None:
        self._tallies = Tallies()
        self._layers = {
            operator: Layer(source=source, tallies=self._tallies) for operator, source in sources.items()
        }
        self._on = False

    @property
    def operators(self) -> tuple[str, ...]:
        """The names of the replaced operators."""
        return tuple(each.name for each in self._layers)

    @property
    def counts(self) -> tuple[Count, ...]:
        """The calls of these operators while the override was enabled."""
        return self._tallies.counts()

    def report(self) -> str:
        """The counts as a table."""
        return table(self.counts)

    def enable(self) -> Override:
        """Enables the override and returns it. Discards code compiled by `torch.compile`, which does not use
        the kernels.

        Raises:
            RuntimeError: it is already enabled.
        """
        with _LOCK:
            if self._on:
                raise RuntimeError("this override is already enabled; create another one to nest it")
            for operator, layer in self._layers.items():
                for kernel in layer.source.kernels():
                    kernel_operator(operator, kernel, self._tallies)
                _REGISTERED.setdefault(operator.name, _Registration(operator)).add(layer)
            self._on = True
            _forget_compiled()
        return self

    def disable(self) -> None:
        """Disables the override and restores the original operators. Does nothing if it is not enabled."""
        with _LOCK:
            if not self._on:
                return
            for operator, layer in self._layers.items():
                _REGISTERED[operator.name].remove(layer)
            self._on = False
            _forget_compiled()

    def __enter__(self) -> Override:
        return self.enable()

    def __exit__(self, *error: object) -> None:
        self.disable()


class _Registration:
    """The registration of an operator with torch; its layers are those of the enabled overrides, the latest
    first."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._layers: tuple[Layer, ...] = ()
        self._library: torch.library.Library | None = None

    def add(self, layer: Layer) -> None:
        self._update((layer, *self._layers))

    def remove(self, layer: Layer) -> None:
        self._update(tuple(each for each in self._layers if each is not layer))

    def kernel_ids(self) -> list[str]:
        return [kernel.id for layer in self._layers for kernel in layer.source.kernels()]

    def _update(self, layers: tuple[Layer, ...]) -> None:
        if self._library is not None:
            self._library._destroy()  # type: ignore[no-untyped-call]
            self._library = None
        self._layers = layers
        if layers:
            self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
            for device in sorted({device for each in layers for device in each.source.devices}):
                self._register(device, [each for each in layers if device in each.source.devices])
            for form in self._forms():
                self._implement(form, KEY, Tracer(self._operator, form, layers))
        for form in self._forms():
            form._dispatch_cache.clear()

    def _forms(self) -> list[torch._ops.OpOverload]:
        """The forms to register, the functional one first. For a composite operator it is the only one: the
        other forms get their backward from the operators that implement them."""
        operator = self._operator
        others = () if operator.composite else (*operator.in_place, *operator.outs)
        return [operator.overload, *others]

    def _register(self, device: str, layers: list[Layer]) -> None:
        operator = self._operator
        dispatchers = [
            (form, Dispatcher(operator, form, device.upper(), layers))
            for form in self._forms()
            if torch._C._dispatch_has_computed_kernel_for_dispatch_key(schema_name(form), device.upper())
        ]
        if not dispatchers:  # this torch is built without the device
            return
        own = any(
            each.source.trained or any(kernel.backward for kernel in each.source.kernels()) for each in layers
        )
        if operator.composite or own:
            autograd = AutogradDispatcher(operator, device, layers, dispatchers[0][1])
            self._implement(operator.overload, autograd.key, autograd)
        for form, dispatcher in dispatchers:
            self._implement(form, device.upper(), dispatcher)

    def _implement(self, form: torch._ops.OpOverload, key: str, function: Any) -> None:
        assert self._library is not None, "there are layers"
        with warnings.catch_warnings():  # torch warns once about replacing a kernel
            warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
            self._library.impl(form, function, key, with_keyset=True)  # type: ignore[no-untyped-call]


def _forget_compiled() -> None:
    """Discards compiled code and changes the key of torch's disk caches: both depend on the enabled
    kernels."""
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.reset()
    config = torch.compiler.config
    ids = ",".join(each for known in _REGISTERED.values() for each in known.kernel_ids())
    before = config.cache_key_tag.partition("overrides:")[0]
    config.cache_key_tag = f"{before}overrides:{ids}" if ids else before
