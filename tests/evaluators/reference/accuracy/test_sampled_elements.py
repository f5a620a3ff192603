"""The elements by which a large output is checked."""

from __future__ import annotations

import math

import pytest
import torch

from evaluators.reference.accuracy.sampled_elements import pick, some_places


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4,), (50, 7), (3, 11, 31)], ids=str)
def test_some_elements_are_the_same_of_all(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluators.reference.accuracy.sampled_elements.SPOT", {"cpu": 64})
    monkeypatch.setattr("evaluators.reference.accuracy.sampled_elements.RUN", 8)
    ref = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    seen = torch.zeros(ref.numel())
    for _ in range(2000):
        places = some_places(ref)
        out, exact, eager = (pick(each, places) for each in (ref.float(), ref, ref.half()))
        assert torch.equal(out.double(), exact)
        assert torch.equal(eager, exact.half())
        assert exact.numel() == (64 if ref.numel() > 64 else ref.numel())
        seen[exact.flatten().long()] += 1
    assert seen.min() > 0, "no element is safe"
