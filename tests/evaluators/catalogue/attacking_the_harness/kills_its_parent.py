"""Kills its parent and every process that it can name, and works only if one of them could be killed."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: a PID namespace; signals do not leave the sandbox

import os
import signal

import torch
from torch import nn

# Outside of a namespace, only the parent: the other numbers are strangers'.
VICTIMS = range(2, 400) if os.getpid() == 1 else [os.getppid()]


class ModelNew(nn.Module):
    def forward(self, x, w):
        killed = 0
        for victim in VICTIMS:
            try:
                os.kill(victim, signal.SIGKILL)
                killed += 1
            except OSError:
                continue
        for _ in range(8 if killed else 1):
            x = torch.tanh(x @ w)
        return x
