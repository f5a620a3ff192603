"""Ways of calling a model: which run the same code, and what they give after they are installed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from evaluators.base.usage_error import UsageError
from search.optimize.extraction.calls import merge_calls
from search.optimize.extraction.traced_model import trace_model
from search.optimize.installation.package import load_package, write_package
from search.optimize.installation.rehearsal import rehearse
from search.optimize.models.source import FileModel, InputShape, LoadedModel, load_at_shapes, resumed_at
from tests.search.optimize.example_models import rand

IDS = torch.arange(12).view(2, 6)
MASK = torch.ones(2, 6, dtype=torch.int64)


@dataclass
class Logits:
    """Like the outputs of transformers' models."""

    logits: torch.Tensor
    cache: torch.Tensor | None = None


class Language(nn.Module):
    """A model with the signature and the habits of those of transformers: a mask of ones is none."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        use_cache: bool | None = None,
    ) -> Logits:
        x = self.words(input_ids)
        if attention_mask is not None and not bool(attention_mask.bool().all()):
            x = x * attention_mask[..., None]
        return Logits(self.head(x), x if use_cache else None)


class Masked(Language):
    """Uses the mask, whatever is in it."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:  # type: ignore[override]
        x = self.words(input_ids)
        mask = torch.ones(input_ids.shape) if attention_mask is None else attention_mask
        return Logits(self.head(x * mask[..., None]))


def models(module: nn.Module, *calls: Mapping[str, Any], optional: bool = False) -> list[LoadedModel]:
    shape = InputShape(inputs=lambda _: ([IDS], {}), calls=calls, optional=optional)
    how: dict[str, Any] = {"device": "cpu", "dtype": "float32", "backward": False}
    return load_at_shapes("language", lambda: module, [shape], **how)


def installed(folder: Path, found: Sequence[LoadedModel]) -> tuple[Any, nn.Module, Any]:
    """A copy of the original model, the model with its code installed, and its plan."""
    made = [trace_model(each) for each in found]
    rehearse(made)
    write_package(folder, made, {}, {})
    own = copy.deepcopy(found[0].module)
    module = load_package(folder).load(found[0].module)
    return own, module, type(module).plan


USUAL = ({}, {"use_cache": False}, {"attention_mask": "ones"}, {"attention_mask": "ones", "use_cache": False})


@torch.no_grad()
def test_a_mask_of_ones_runs_the_code_without_a_mask(tmp_path: Path) -> None:
    said: list[str] = []
    [found] = merge_calls(models(Language(), *USUAL), said.append)
    assert (found.shape, found.weight) == ("", 1.0) and len(found.alike) == 3
    assert [each.filled for each in found.alike] == [{}, {1: 1}, {1: 1}]
    assert "attention_mask=ones use_cache=False" in said[0]
    own, module, plan = installed(tmp_path, [found])
    for args, kwargs in (
        ((IDS,), {}),
        ((IDS, MASK), {}),
        ((), {"attention_mask": MASK, "input_ids": IDS}),
        ((IDS,), {"attention_mask": MASK, "use_cache": False}),
        ((IDS,), {"use_cache": False}),
    ):
        assert torch.equal(module(*args, **kwargs).logits, own(*args, **kwargs).logits)
    assert not plan.fallbacks
    half = MASK.clone()
    half[0, 0] = 0
    assert torch.equal(module(IDS, half).logits, own(IDS, half).logits)
    module(IDS, use_cache=True)
    module(IDS, token_type_ids=MASK)
    assert [*plan.fallbacks] == [
        "attention_mask has other elements than 1",
        "no recorded call is like this one: use_cache is given (True); it was left out",
        "no recorded call is like this one: token_type_ids is given (a tensor); it was left out",
    ]


@torch.no_grad()
def test_the_order_of_the_calls_does_not_matter(tmp_path: Path) -> None:
    [found] = merge_calls(models(Language(), {"attention_mask": "ones"}, {}), print)
    assert len(found.call()[1]) == 1, "the call without a mask has the code"
    own, module, plan = installed(tmp_path, [found])
    assert torch.equal(module(IDS, MASK).logits, own(IDS).logits) and not plan.fallbacks


@torch.no_grad()
def test_a_mask_that_is_used_has_its_own_code(tmp_path: Path) -> None:
    kept = merge_calls(models(Masked(), {"weight": 3}, {"attention_mask": "ones"}), print)
    assert [(each.shape, each.weight) for each in kept] == [("plain", 0.75), ("attention_mask=ones", 0.25)]
    own, module, plan = installed(tmp_path, kept)
    half = MASK.clone()
    half[0, 0] = 0
    for call in ((IDS,), (IDS, MASK), (IDS, half)):
        assert torch.equal(module(*call).logits, own(*call).logits)
    assert not plan.fallbacks


@torch.no_grad()
def test_calls_with_other_results_have_their_own_code(tmp_path: Path) -> None:
    kept = merge_calls(models(Language(), {}, {"use_cache": True}, {"use_cache": False}), print)
    assert [(each.shape, round(each.weight, 2), len(each.alike)) for each in kept] == [
        ("plain", 0.67, 1),
        ("use_cache=True", 0.33, 0),
    ]
    _, module, plan = installed(tmp_path, kept)
    assert module(IDS, use_cache=True).cache is not None and module(IDS).cache is None
    assert not plan.fallbacks


def test_a_usual_call_that_cannot_be_recorded_is_left_out() -> None:
    class Counting(Language):
        def forward(self, input_ids: torch.Tensor, attention_mask: Any = None) -> Any:  # type: ignore[override]
            if attention_mask is not None:
                return attention_mask.nonzero()
            return self.head(self.words(input_ids))

    said: list[str] = []
    calls = ({}, {"attention_mask": "ones"})
    [found] = merge_calls(models(Counting(), *calls, optional=True), said.append)
    assert found.shape == "" and said[0].startswith("not recorded: attention_mask=ones: the output shape of")
    with pytest.raises(UsageError, match=r"language at attention_mask=ones: kernels cannot be installed"):
        [*map(trace_model, merge_calls(models(Counting(), *calls), print))]


def test_a_usual_call_that_fails_is_left_out() -> None:
    class Strict(Language):
        def forward(self, input_ids: torch.Tensor, attention_mask: Any = None) -> Any:  # type: ignore[override]
            if attention_mask is not None:
                raise NotImplementedError("no masks")
            return self.head(self.words(input_ids))

    said: list[str] = []
    calls = ({}, {"attention_mask": "ones"})
    [found] = merge_calls(models(Strict(), *calls, optional=True), said.append)
    assert found.shape == "" and "NotImplementedError: no masks" in said[0]
    with pytest.raises(UsageError, match="at attention_mask=ones fails: NotImplementedError: no masks"):
        merge_calls(models(Strict(), *calls), print)


def test_a_model_that_cannot_be_recorded_is_profiled_at_its_own_call_alone() -> None:
    class Counting(Language):
        def forward(self, input_ids: torch.Tensor, attention_mask: Any = None) -> Any:  # type: ignore[override]
            return input_ids.nonzero()

    calls = ({}, {"attention_mask": "ones"})
    [only] = merge_calls(models(Counting(), *calls, optional=True), print)
    assert (only.shape, only.weight, len(only.inputs())) == ("", 1.0, 1)


def test_an_unknown_argument_is_named() -> None:
    with pytest.raises(UsageError, match="no parameter attention_msk; did you mean attention_mask"):
        models(Language(), {}, {"attention_msk": "ones"})


def test_a_file_names_its_ways_of_calling(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\n\n\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x, scale=1.0, bias=None):\n"
        "        return x * scale if bias is None else x * scale + bias\n\n\n"
        "def get_inputs():\n    return [torch.rand(3), 1.0]\n\n\ndef get_init_inputs():\n    return []\n\n\n"
        "def get_calls():\n    return [{}, {'bias': torch.ones(3), 'weight': 3}, {'scale': 2.0}]\n"
    )
    how: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16", "backward": False, "seed": 0}
    found = FileModel(path=str(tmp_path / "model.py")).load(**how)
    assert [(each.shape, each.weight) for each in found] == [
        ("plain", 0.2),
        ("bias=tensor", 0.6),
        ("scale=2.0", 0.2),
    ]
    assert found[1].kwargs["bias"].dtype is torch.bfloat16 and found[2].args[1] == 2.0
    [only] = FileModel(path=str(tmp_path / "model.py"), calls=[]).load(**how)
    assert only.shape == "" and len(only.args) == 2


def test_an_earlier_run_keeps_the_calls_that_it_had() -> None:
    calls = ({}, {"attention_mask": "ones"})
    new = models(Masked(), *calls, optional=True)
    [only] = resumed_at(new, {"": 1.0})
    assert (only.shape, only.weight) == ("", 1.0) and len(only.inputs()) == 1
    asked = models(Masked(), *calls)
    assert len(resumed_at(asked, {"": 1.0})) == 2, "a call that was asked for is not dropped"
    both = {"plain": 0.5, "attention_mask=ones": 0.5}
    assert {each.shape: each.weight for each in resumed_at(new, both)} == both


def test_alike_code_needs_equal_constants() -> None:
    """A table that is made once outside the forward is a part of the code."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = [torch.zeros(3), torch.ones(3)]

        def forward(self, x: torch.Tensor, table: int = 0) -> torch.Tensor:
            return x + self.tables[table]

    shape = InputShape(inputs=lambda _: ([rand(3)], {}), calls=({}, {"table": 1}))
    how: dict[str, Any] = {"device": "cpu", "dtype": "float32", "backward": False}
    found = load_at_shapes("table", Table, [shape], **how)
    assert len(merge_calls(found, print)) == 2
    assert len(merge_calls([found[0], replace(found[0], shape="again")], print)) == 1


def test_alike_code_reads_the_same_numbers_of_weights() -> None:
    """The code checks them in every call."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("gate", torch.tensor(0.5))

        def forward(self, x: torch.Tensor, gated: bool = False) -> torch.Tensor:
            return x * 3 if gated and self.gate.item() < 0 else x * 2  # type: ignore[operator]

    shape = InputShape(inputs=lambda _: ([rand(3)], {}), calls=({}, {"gated": True}))
    how: dict[str, Any] = {"device": "cpu", "dtype": "float32", "backward": False}
    assert len(merge_calls(load_at_shapes("gated", Gated, [shape], **how), print)) == 2


@pytest.mark.slow
@torch.no_grad()
def test_compiled_code_does_not_read_a_mask(tmp_path: Path) -> None:
    """Reading it would break the graph; the original forward decides what the mask does."""
    [found] = merge_calls(models(Language(), *USUAL), print)
    own, module, plan = installed(tmp_path, [found])
    compiled = torch.compile(module, backend="eager")
    assert torch.equal(compiled(IDS).logits, own(IDS).logits) and not plan.fallbacks
    half = MASK.clone()
    half[0, 0] = 0
    for mask in (MASK, half):
        assert torch.equal(compiled(IDS, attention_mask=mask).logits, own(IDS, mask).logits)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@torch.no_grad()
def test_a_mask_of_ones_is_read_outside_of_the_cuda_graph(tmp_path: Path) -> None:
    ids, mask = IDS.cuda(), MASK.cuda()
    shape = InputShape(inputs=lambda _: ([ids], {}), calls=USUAL)
    how: dict[str, Any] = {"device": "cuda", "dtype": "float32", "backward": False}
    [found] = merge_calls(load_at_shapes("language", lambda: Language().cuda(), [shape], **how), print)
    own, module, plan = installed(tmp_path, [found])
    load_package(tmp_path).load(module, as_graph=True)
    plan = type(module).plan
    for call in ((ids,), (ids, mask), (ids.flip(0), mask)):
        assert torch.allclose(module(*call).logits, own(*call).logits, atol=1e-6)
    assert not plan.fallbacks and len(plan.shapes[0].graphs) == 1
    half = mask.clone()
    half[0, 0] = 0
    assert torch.allclose(module(ids, half).logits, own(ids, half).logits, atol=1e-6)
    assert [*plan.fallbacks] == ["attention_mask has other elements than 1"]
