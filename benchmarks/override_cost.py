"""Measures the overhead of an override per call, in eager, under `torch.compile` and in a CUDA graph:

    python benchmarks/override_cost.py
    python benchmarks/override_cost.py device=cuda calls=1000

The operators are small, so that call overhead dominates. Columns, in µs per call: `original`, without an
override; `declined`, with a kernel whose `supports` returns false; `kernel`, with a kernel that does nothing,
so that all of its time is overhead. Each is the least of several blocks of calls; on a GPU the time until the
last call of a block was issued, and for graphs until it finished.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from kernel_library import override

BLOCKS = 50
IN_GRAPH = 100
"""Calls in one graph."""
DECLINING = "def kernel(*args, **kwargs): ...\ndef supports(*args, **kwargs): return False\n"
Call = Callable[[], object]


def cases(device: str) -> dict[str, tuple[str, Callable[..., torch.Tensor], list[torch.Tensor]]]:
    """By name: the operator, a function that calls it once, and its arguments."""
    a, b, bias = (torch.randn(*size, device=device) for size in ((8, 8), (8, 8), (8,)))
    grown = a.clone().requires_grad_()
    return {
        "relu": ("aten.relu", torch.relu, [a]),
        "relu_": ("aten.relu", torch.relu_, [a]),
        "softmax": ("aten._softmax", lambda x: torch.softmax(x, -1), [a]),
        "softmax, needs a gradient": ("aten._softmax", lambda x: torch.softmax(x, -1), [grown]),
        "addmm": ("aten.addmm", torch.addmm, [bias, a, b]),
    }


def per_call_us(call: Call, calls: int, device: str, *, wait: bool = False) -> float:
    """The least mean time per call over the blocks; `wait`: for the device to finish."""
    best = float("inf")
    for _ in range(BLOCKS):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        if wait:
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


def eager(function: Callable[..., torch.Tensor], arguments: list[torch.Tensor], calls: int) -> float:
    """Microseconds per call."""
    return per_call_us(lambda: function(*arguments), calls, arguments[0].device.type)


def compiled(function: Callable[..., torch.Tensor], arguments: list[torch.Tensor], calls: int) -> float:
    """Microseconds per call of the compiled function, including its guards."""
    torch._dynamo.reset()
    call = torch.compile(function)
    call(*arguments)
    return per_call_us(lambda: call(*arguments), calls, arguments[0].device.type)


def graph(function: Callable[..., torch.Tensor], arguments: list[torch.Tensor], calls: int) -> float:
    """Microseconds per call in a CUDA graph of many calls."""
    function(*arguments)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(IN_GRAPH):
            function(*arguments)
    return per_call_us(captured.replay, max(1, calls // IN_GRAPH), "cuda", wait=True) / IN_GRAPH


def main() -> None:
    """Prints the table."""
    given = dict(each.split("=") for each in sys.argv[1:])
    device, calls = given.get("device", "cpu"), int(given.get("calls", "100"))
    torch.set_num_threads(1)
    ways = {"eager": eager, "compiled": compiled, **({"graph": graph} if device == "cuda" else {})}
    print(f"torch {torch.__version__}, {device}; µs per call")
    print(f"{'':<10}{'':<28}{'original':>10}{'declined':>10}{'kernel':>10}{'declined costs':>16}")
    with tempfile.TemporaryDirectory() as folder:
        declining = Path(folder) / "declining.py"
        declining.write_text(DECLINING)
        for way, measure in ways.items():
            for name, (operator, function, arguments) in cases(device).items():
                if way != "eager" and "gradient" in name:
                    continue
                ready = function(*(each.detach().clone() for each in arguments))
                found = [measure(function, arguments, calls)]
                for kernel in (declining, lambda *args, _ready=ready, **kwargs: _ready):
                    with override({operator: kernel}):
                        found.append(measure(function, arguments, calls))
                columns = "".join(f"{value:>10.2f}" for value in found)
                print(f"{way:<10}{name:<28}{columns}{found[1] - found[0]:>16.2f}", flush=True)


if __name__ == "__main__":
    main()
