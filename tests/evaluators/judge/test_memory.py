"""How much memory judging takes, in units of a reference's input, because candidates need the rest of a GPU.
Living tensors are counted on a CPU, so inputs of 6 GiB, as on a GPU, are not needed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evaluators.reference import validation
from evaluators.reference.accuracy import differences, sampled_elements
from evaluators.reference.answer import Draw
from evaluators.reference.reference_model import ReferenceModel
from tests.evaluators.references import session_of

ROWS, COLUMNS = 32, 2**14
INPUT_BYTES = 4 * ROWS * COLUMNS


class Alive(TorchDispatchMode):
    """Counts the bytes of all tensors that operators return, while these live."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, int] = {}
        self.most = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            if isinstance(each, torch.Tensor):
                self._count(each.untyped_storage())
        self.most = max(self.most, sum(self._sizes.values()))
        return found

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            weakref.finalize(storage, self._sizes.pop, key, None)

    def inputs(self, work: Callable[[], Any]) -> float:
        """The most that is alive during some work, as so many inputs, those that were before not counted."""
        before = sum(self._sizes.values())
        self.most = before
        work()
        return (self.most - before) / INPUT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", ["strict", "kernelbench_v02"])
def test_a_kernel_is_judged_in_the_memory_of_some_inputs(
    tolerance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "CHUNK", 2**12)
    monkeypatch.setattr(sampled_elements, "SPOT", {"cpu": 2**12})
    session: ReferenceModel
    with Alive() as alive:
        session = session_of(torch.relu, lambda: [torch.randn(ROWS, COLUMNS)], tolerance=tolerance)
        assert alive.inputs(lambda: validation.examine(session)) < 11, "before there are shared buffers"
        session.forget_sample()
        outputs = session.run(session.draw(5))
        assert alive.inputs(lambda: session.answer(Draw(seed=5))) < 6.2, "inputs, eager, both in float64"
        known = session.answer(Draw(seed=5))
        assert alive.inputs(lambda: session.judge(outputs, known)) < 0.1
        for name in session.distributions:
            assert alive.inputs(partial(session.draw, session.seed_on(name), name)) < 4.6, name
            assert alive.inputs(partial(session.check_on, outputs, name)) < 9, name
