"""Records one run of a model call by call, as PyTorch dispatches it: arguments, call sites, and which call
reads what another wrote.

A call's *site* is the path of the module that makes it (`h.0.attn`), "" for the model itself; in the backward
pass it is the module whose forward the call belongs to. A *value* is the content of a tensor's memory after a
call: views of a tensor share its value, and an in-place operator makes a new one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from evaluators.reference.containers import tensors_in
from evaluators.suites.traced.call import TracedCall
from evaluators.suites.traced.grammar import write_arguments
from evaluators.suites.traced.recording import CREATION, call_of, kind_of
from search.optimize.models.source import LoadedModel, without_fastpath
from search.optimize.profiling.values import Values, place_of

if TYPE_CHECKING:
    import torch
    from torch import nn


class OperatorKind(StrEnum):
    """What an operator does."""

    VIEW = "view"
    """Moves no data."""
    CREATION = "creation"
    """Makes a tensor without reading one."""
    CONTRACTION = "contraction"
    """Matmuls, convolutions and attention: multiplications and additions that reuse what they read."""
    LIGHT = "light"
    """Elementwise operators and reductions, limited by memory bandwidth."""
    OTHER = "other"


LIGHT = (
    *(
        "_softmax",
        "_safe_softmax",
        "_log_softmax",
        "native_layer_norm",
        "native_group_norm",
        "_fused_rms_norm",
    ),
    *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
    *("cudnn_batch_norm", "miopen_batch_norm", "native_dropout", "bernoulli", "_to_copy", "copy", "clone"),
    *("cat", "stack", "mean", "sum", "amax", "amin", "max", "min", "var", "var_mean", "std", "prod"),
    *(
        "linalg_vector_norm",
        "max_pool2d_with_indices",
        "avg_pool2d",
        "_adaptive_avg_pool2d",
        "nll_loss_forward",
    ),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d"),
    *("nll_loss", "mse_loss", "masked_fill", "where", "tril", "triu", "glu", "repeat", "constant_pad_nd"),
)
"""Light operators in addition to those that PyTorch tags as elementwise or a reduction, including their
backward forms (`…_backward`)."""
BY_ROW = ("embedding", "index_select", "gather", "index")
"""Operators that read only the rows of their first tensor that they write."""
WITHOUT_READING = ("copy", "fill", "zero", "bernoulli", "normal", "uniform", "random", "exponential")
"""In-place operators that do not read the previous content."""


@dataclass(frozen=True, kw_only=True)
class RecordedCall:
    """One call. `arguments`: text in the trace format, "" where it cannot express them. `reads` and `writes`:
    bytes by value. `operations`: multiplications and additions. `origin`: of a call in the backward pass, the
    index of the forward call to whose gradient it belongs, if that is known."""

    operator: str
    arguments: str
    call: TracedCall | None
    site: str
    backward: bool
    kind: OperatorKind
    dtype: str
    reads: Mapping[int, int]
    writes: Mapping[int, int]
    operations: int = 0
    origin: int | None = None

    @property
    def name(self) -> str:
        """The operator without namespace and overload: `addmm` for `aten.addmm.default`."""
        return self.operator.split(".")[1]


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run's calls in order; `kept`: the values that outlive it, which are outputs, gradients and changed
    weights and inputs. The first `forward_calls` calls are those of the model's forward."""

    calls: Sequence[RecordedCall]
    kept: frozenset[int]
    forward_calls: int

    @property
    def forward(self) -> RecordedRun:
        """The forward alone."""
        return replace(self, calls=self.calls[: self.forward_calls])


def record(model: LoadedModel) -> RecordedRun:
    """Runs the model once. Raises what the model raises."""
    recorder = _Recorder(model.device)
    with without_fastpath(), recorder.sites_of(model.module), recorder.recording():
        left = model.run()
        lasting = [*left, *model.module.parameters(), *model.module.buffers(), *model.inputs()]
        kept = frozenset(value for each in lasting if (value := recorder.values.known(each)) is not None)
    return RecordedRun(calls=recorder.calls, kept=kept, forward_calls=recorder.forward_calls)


@dataclass
class _Recorder:
    device: str
    calls: list[RecordedCall] = field(default_factory=list)
    values: Values = field(default_factory=Values)
    forward_calls: int = 0
    _stack: list[str] = field(default_factory=list)
    _origins: dict[int, tuple[str, int]] = field(default_factory=dict)
    """The site and index of the forward call that made an autograd node, by its sequence number."""
    _last_origin: int | None = None

    @contextlib.contextmanager
    def sites_of(self, module: nn.Module) -> Iterator[None]:
        """Within the block, tracks which module runs."""
        hooks = []

        def entered(name: str) -> Any:
            return lambda *_: self._stack.append(name)

        def left(*_: Any) -> None:
            self._stack.pop()
            if not self._stack:
                self.forward_calls = len(self.calls)

        for name, each in module.named_modules():
            hooks.append(each.register_forward_pre_hook(entered(name), prepend=True))
            hooks.append(each.register_forward_hook(left, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def recording(self) -> Any:
        """A context in which every call is recorded."""
        from torch.utils._python_dispatch import TorchDispatchMode

        note, site = self._note, self._site

        class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                where = site()  # before the call, which may raise or call others
                record_output = note(func, args, kwargs or {}, *where)
                out = func(*args, **(kwargs or {}))
                record_output(out)
                return out

        return Recording()  # type: ignore[no-untyped-call]

    def _site(self) -> tuple[str, bool, int | None]:
        """The site of the call about to be made, whether the backward pass makes it, and its origin."""
        import torch

        node = torch._C._current_autograd_node()
        if node is not None:
            site, origin = self._origins.get(node._sequence_nr(), ("", None))
            return site, True, self._reader_of(origin)
        site = self._stack[-1] if self._stack else ""
        if torch.is_grad_enabled():
            made = torch.autograd._get_sequence_nr() - 1
            self._origins.setdefault(made, (site, len(self.calls)))
        return site, False, None

    def _reader_of(self, origin: int | None) -> int | None:
        """The origin; for a view, the call that read it, whose gradient was computed just before."""
        if origin is not None and self.calls[origin].kind is not OperatorKind.VIEW:
            self._last_origin = origin
        return None if origin is None else self._last_origin

    def _note(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        site: str,
        backward: bool,
        origin: int | None,
    ) -> Any:
        """Records a call's inputs now, because it may change them; returns what takes its output."""
        operator = str(func)
        given = tensors_in([list(args), dict(kwargs)])
        reads = self._read(given)
        changed = changed_by(func, args, kwargs)
        try:
            call = call_of(operator, args, kwargs, self.device)
            text = write_arguments(call)
        except ValueError:
            call, text = None, ""

        def note(out: Any) -> None:
            outputs = tensors_in(out)
            places = {place_of(each) for each in given}
            fresh = [each for each in outputs if place_of(each) not in places]
            overwritten = _name(func) in WITHOUT_READING
            for each in changed:
                if overwritten and (old := self.values.known(each)) is not None:
                    reads[old] = 0
            written = {self.values.new(each): _bytes(each) for each in (*fresh, *changed)}
            writes = {value: size for value, size in written.items() if value is not None}
            if _name(func) in BY_ROW and given and (table := self.values.known(given[0])) in reads:
                reads[table] = min(reads[table], sum(writes.values()))
            self.calls.append(
                RecordedCall(
                    operator=operator,
                    arguments=text,
                    call=call,
                    site=site,
                    backward=backward,
                    kind=_kind(func, viewed=bool(outputs) and not writes),
                    dtype=_dtype([*outputs, *given]),
                    reads=reads,
                    writes=writes,
                    operations=_operations(func, args, kwargs, out),
                    origin=origin,
                )
            )

        return note

    def _read(self, given: Sequence[torch.Tensor]) -> dict[int, int]:
        """Bytes read by value: the sum over several views of a value, capped at its size."""
        views: dict[int, dict[Any, torch.Tensor]] = {}
        for each in given:
            if (value := self.values.of(each)) is not None:
                where = each.storage_offset(), each.shape, each.stride()
                views.setdefault(value, {})[where] = each
        return {
            value: min(
                sum(map(_bytes, found.values())), next(iter(found.values())).untyped_storage().nbytes()
            )
            for value, found in views.items()
        }


def changed_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments that the operator writes to."""
    if not func._schema.is_mutable:
        return []
    names = [each.name for each in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    written = [each.name for each in func._schema.arguments if each.is_write]
    return tensors_in([given[name] for name in written if name in given])


def _name(func: Any) -> str:
    """The operator's name without the in-place underscore."""
    return str(func._overloadpacket.__name__).rstrip("_")


def _kind(func: Any, *, viewed: bool) -> OperatorKind:
    import torch

    if viewed:
        return OperatorKind.VIEW
    if kind_of(str(func)) == CREATION:
        return OperatorKind.CREATION
    if _formula(func) is not None:
        return OperatorKind.CONTRACTION
    marks = {getattr(torch.Tag, name, None) for name in ("pointwise", "reduction")} - {None}
    light = marks & set(func.tags) or _name(func).removesuffix("_data").removesuffix("_backward") in LIGHT
    return OperatorKind.LIGHT if light else OperatorKind.OTHER


def _formula(func: Any) -> Any:
    """PyTorch's FLOP formula of a contraction; None for other operators."""
    from torch.utils.flop_counter import flop_registry

    packet, name = func._overloadpacket, _name(func)
    if packet not in flop_registry and name.startswith("_scaled_dot_product"):  # the CPU's variants
        import torch

        way = "flash_attention_backward" if name.endswith("backward") else "flash_attention"
        packet = getattr(torch.ops.aten, f"_scaled_dot_product_{way}")
    return flop_registry.get(packet)


def _operations(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """Operations of a call; 0 where they cannot be counted. Causal attention counts half."""
    formula = _formula(func)
    if formula is None:
        return 0
    names = [each.name for each in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    try:
        counted = formula(*args, **kwargs, out_val=out)
    except Exception:  # the formula expects other arguments
        return 0
    return math.ceil(counted / 2) if given.get("is_causal") else int(counted)


def _dtype(tensors: Sequence[torch.Tensor]) -> str:
    """The dtype of the first floating tensor; of the first tensor where there is none."""
    found = [each for each in tensors if each.is_floating_point()] or list(tensors)
    return str(found[0].dtype).removeprefix("torch.") if found else ""


def _bytes(tensor: torch.Tensor) -> int:
    """A tensor's bytes in memory: fewer than its elements suggest where they are repeated."""
    import torch

    size = tensor.numel() * tensor.element_size()
    return min(size, tensor.untyped_storage().nbytes()) if tensor.layout is torch.strided else size
