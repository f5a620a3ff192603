"""Lets code on meta tensors, without a GPU, take the paths that it takes on one."""

from __future__ import annotations

import contextlib
from typing import Any

MULTIPROCESSORS = {"8.0": 108, "8.6": 84, "8.9": 142, "9.0": 132, "10.0": 148, "12.0": 188}
"""Of the largest common GPU of each compute capability. A kernel for which another number is a constant is
compiled again at its first call."""


def as_on_gpu() -> Any:
    """A context in which meta tensors say they are on a GPU, and tensors made on a GPU are meta tensors."""
    import torch
    from torch.overrides import TorchFunctionMode

    said = {
        torch.Tensor.is_cuda.__get__: True,  # type: ignore[attr-defined]
        torch.Tensor.device.__get__: torch.device("cuda", 0),
        torch.Tensor.get_device: 0,
    }

    def moved(value: Any) -> Any:
        is_gpu = isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda"
        return torch.device("meta") if is_gpu else value

    class AsOnGpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in said:
                return said[func]
            if func is torch.Tensor.cuda:
                return args[0]
            return func(*map(moved, args), **{name: moved(each) for name, each in (kwargs or {}).items()})

    return AsOnGpu()


def answer_for_gpu(architecture: str) -> None:
    """From now on, `torch.cuda` tells this process of a GPU of this compute capability ("9.0")."""
    from types import SimpleNamespace

    import torch

    major, _, minor = architecture.partition(".")
    properties = SimpleNamespace(
        name="GPU",
        major=int(major),
        minor=int(minor),
        multi_processor_count=MULTIPROCESSORS.get(architecture, 132),
        warp_size=32,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=227 << 10,
        shared_memory_per_multiprocessor=228 << 10,
        L2_cache_size=50 << 20,
        total_memory=80 << 30,
    )
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": (properties.major, properties.minor),
        "get_device_properties": properties,
        "get_device_name": properties.name,
        "current_stream": SimpleNamespace(cuda_stream=0),
        "synchronize": None,
        "device": contextlib.nullcontext(),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
