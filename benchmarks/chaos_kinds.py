"""The kinds of candidates in `benchmarks/chaos.py`: an honest kernel and every way to fail."""

from __future__ import annotations

from dataclasses import dataclass

from evaluators.records.evaluation import Status
from evaluators.records.problem import Kernel

MODEL = """
import ctypes, os, signal, sys, threading, time
import torch
from torch import nn

class {name}(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.depth = depth

    def forward(self, x):
        for _ in range(self.depth):
            x = torch.tanh(x @ self.weight)
        return x
"""
REFERENCE = f"""{MODEL.format(name="Model")}
width = 128
depth = 8

def get_inputs():
    return [torch.randn(width, width)]

def get_init_inputs():
    return [width, depth]
"""
GONE = 'print(f"dies at {time.time()}", flush=True)\n'
"""Printed before a death; nothing else that a candidate prints is trusted."""

TRITON = """
import triton
import triton.language as tl

@triton.jit
def spin(flag, out):
    x = tl.load(flag)
    while x == 0:
        x = tl.load(flag, volatile=True)
    tl.store(out, x)

@triton.jit
def stray(out, offset):
    tl.store(out + offset, 1.0)
"""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A behaviour: the `body` of forward, the `top` of the module, and the `right` verdicts."""

    name: str
    right: tuple[Status, ...]
    body: str = "return honest(self, x)"
    top: str = ""
    source: str = ""
    gpu: bool = False

    def kernel(self, number: int) -> Kernel:
        """A kernel of this kind; no two are equal."""
        lines = "\n".join(f"    {line}" for line in self.body.splitlines())
        source = self.source or (
            f"{MODEL.format(name='ModelNew')}\n{self.top}\nhonest = ModelNew.forward\n"
            f"def forward(self, x):\n{lines}\nModelNew.forward = forward\n"
        )
        return Kernel(source=f"# {number}\n{source}", language="triton" if self.gpu else "cpp")


HONEST = Kind(name="honest", right=(Status.CORRECT,))
DEAD, LATE = (Status.CRASHED,), (Status.TIMEOUT,)
BAD_BUILD, BAD_RUN, WRONG = (Status.COMPILE_ERROR,), (Status.RUNTIME_ERROR,), (Status.INCORRECT,)
STOPPED = (Status.CRASHED, Status.TIMEOUT, Status.RUNTIME_ERROR)
INLINE = "from torch.utils.cpp_extension import load_inline\nload_inline(name='bad', cpp_sources='{}')"

KINDS = (
    Kind(name="segfault", right=DEAD, body=GONE + "ctypes.string_at(0)"),
    Kind(name="abort", right=DEAD, body=GONE + "os.abort()"),
    Kind(name="_exit(0)", right=DEAD, body=GONE + "os._exit(0)"),
    Kind(name="_exit(7)", right=DEAD, body=GONE + "os._exit(7)"),
    Kind(name="SIGKILL to itself", right=DEAD, body=GONE + "os.kill(os.getpid(), signal.SIGKILL)"),
    Kind(name="segfault on import", right=DEAD, top=GONE + "ctypes.string_at(0)"),
    Kind(name="_exit on import", right=DEAD, top=GONE + "os._exit(0)"),
    Kind(name="loop in Python", right=LATE, body="while True: pass"),
    Kind(name="loop in C", right=LATE, body="ctypes.PyDLL(None).sleep(10**6)"),
    Kind(name="sleep", right=LATE, body="time.sleep(10**6)"),
    Kind(
        name="loop without signals",
        right=LATE,
        body="for n in range(1, 32):\n    n in (9, 19) or signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
    ),
    Kind(name="sleep on import", right=LATE, top="time.sleep(10**6)"),
    Kind(name="fork bomb", right=STOPPED, body="while True: os.fork()"),
    Kind(
        name="thread bomb",
        right=STOPPED,
        body="while True: threading.Thread(target=time.sleep, args=(10**6,)).start()",
    ),
    Kind(name="100 GB of memory", right=STOPPED, body="kept = [bytearray(b'x' * 2**28) for _ in range(400)]"),
    Kind(
        name="1 GB of output",
        right=STOPPED,
        body="for _ in range(1024): os.write(1, b'x' * 2**20)\nreturn honest(self, x)",
    ),
    Kind(
        name="fills the disk",
        right=STOPPED,
        body="for n in range(10**6):\n    with open(f'{n}', 'wb') as file: file.write(b'x' * 2**26)",
    ),
    Kind(
        name="daemon",
        right=(Status.CORRECT, Status.REJECTED),
        top="if os.fork() == 0:\n    os.setsid()\n    os.fork() and os._exit(0)\n    time.sleep(10**6)",
    ),
    Kind(name="exception", right=BAD_RUN, body="raise ValueError('seven')"),
    Kind(name="sys.exit", right=BAD_RUN, body="sys.exit(0)"),
    Kind(name="wrong result", right=WRONG, body="return x"),
    Kind(name="wrong shape", right=(*WRONG, *BAD_RUN), body="return honest(self, x)[:1]"),
    Kind(name="NaN", right=WRONG, body="return honest(self, x) * float('nan')"),
    Kind(name="syntax error", right=BAD_BUILD, source="def f(:"),
    Kind(name="import error", right=BAD_BUILD, top="import a_module_that_nobody_has"),
    Kind(name="no ModelNew", right=BAD_BUILD, source="class Model: pass"),
    Kind(name="compile error", right=BAD_BUILD, top=INLINE.format("int f() { return nothing; }"), gpu=True),
    Kind(
        name="loop on the GPU",
        right=LATE,
        top=TRITON,
        body="spin[(1,)](torch.zeros(1, dtype=torch.int32, device=x.device), x)\nreturn honest(self, x)",
        gpu=True,
    ),
    Kind(
        name="illegal access",
        right=DEAD,
        top=TRITON,
        body="stray[(1,)](x, 2**38)\nreturn honest(self, x)",
        gpu=True,
    ),
    Kind(
        name="all of the GPU's memory",
        right=(*BAD_RUN, *DEAD),
        body="kept = []\nwhile True: kept.append(torch.ones(2**30, device=x.device))",
        gpu=True,
    ),
)
