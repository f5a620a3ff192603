"""A transformer runs forward and backward with kernels in the place of its operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernel_library import override
from tests.kernel_library.overrides import kernels
from tests.kernel_library.overrides.test_override import calls

transformers = pytest.importorskip("transformers")


@pytest.mark.slow
def test_forward_and_backward_are_equal_and_each_override_runs() -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 64}
    config = transformers.GPT2Config(**sizes, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    config._attn_implementation = "eager"
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(64, (2, 16))

    def run() -> list[Tensor]:
        model.zero_grad()
        out = model(input_ids=ids, labels=ids)
        out.loss.backward()
        return [out.logits.detach(), *(each.grad.clone() for each in model.parameters())]

    expected = run()
    overridden = {
        "aten._softmax": kernels.softmax,
        "aten.native_layer_norm": kernels.layer_norm,
        "aten.addmm": kernels.addmm,
        "aten.mm": kernels.mm,
    }
    with override(overridden, device="cpu") as on:
        found = run()
        for operator in on.operators:
            assert calls(on, operator) > 0, on.report()
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
