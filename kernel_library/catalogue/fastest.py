"""The functions that `best` returns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from evaluators.base.cause import first_line

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

EAGER, COMPILED = "eager PyTorch", "torch.compile"
"""The names of the original, which are no kernel's."""
MOST_CALLS = 4096
"""Kinds of calls of which it is kept whether a kernel supports them."""
Supports = Callable[[Sequence[Sequence[int]], str], bool]


def needs_gradients(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether a call with these tensors is part of a graph."""
    import torch

    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


class FastestFunction:
    """A library kernel, or PyTorch's own computation, of an operation.

    Attributes:
        name: the kernel's id, `eager PyTorch` or `torch.compile`.
        why: the measurements that decided, in one line.
        differentiable: whether inputs may need a gradient: PyTorch's own computation, or a kernel whose
            backward pass was judged (`problem.backward=true`).
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        why: str,
        supports: Supports | None = None,
        instead: Callable[..., Any] | None = None,
        differentiable: bool = False,
    ) -> None:
        """`supports`: whether the function takes tensors of such shapes and dtype; None if it takes any.
        `instead` is the original, for calls that it does not take."""
        self.name, self.why = name, why
        self.differentiable = differentiable or self.original
        self._function, self._supports, self._instead = function, supports, instead
        self._known: dict[Any, bool] = {}

    @property
    def original(self) -> bool:
        """Whether it is PyTorch's own computation, compiled or not."""
        return self.name in (EAGER, COMPILED)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Computes the operation. For inputs that the kernel does not support, PyTorch computes it.

        Raises:
            RuntimeError: an input needs a gradient, and the function is not `differentiable`.
            ValueError: the kernel does not support the inputs, and no original is known.
        """
        if self.original:
            return self._function(*arguments, **named)
        import torch

        from kernel_library.overrides.gradients import with_dense_gradients

        tensors = [each for each in (*arguments, *named.values()) if isinstance(each, torch.Tensor)]
        train = needs_gradients(tensors)
        if train and not self.differentiable:
            raise RuntimeError(
                f"{self.name} has no backward: detach its inputs, or call it under torch.no_grad()"
            )
        key = tuple((each.dtype, each.shape) for each in tensors)
        if self._takes(key):
            try:
                result = self._function(*arguments, **named)
                return with_dense_gradients(result) if train else result
            except (TypeError, ValueError) as error:  # as kernels refuse inputs
                if self._instead is None:
                    raise
                logger.warning("%s: %s; PyTorch computes such calls", self.name, first_line(error))
                self._known[key] = False
        if self._instead is None:
            texts = ", ".join(f"{tuple(shape)} of {dtype}" for dtype, shape in key)
            raise ValueError(f"{self.name} does not support {texts}; see its card for what it supports")
        return self._instead(*arguments, **named)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.why}>"

    def _takes(self, key: tuple[tuple[Any, Sequence[int]], ...]) -> bool:
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_CALLS:
                self._known.clear()
            dtype = str(key[0][0]).removeprefix("torch.") if key else ""
            found = not key or self._supports is None or self._supports([shape for _, shape in key], dtype)
            self._known[key] = found
        return found
