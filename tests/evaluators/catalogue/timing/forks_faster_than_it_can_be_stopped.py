"""Leaves a process behind that moves into a new child every moment. Stopping processes one by one misses
the newest, which burns the cores and lets the others continue."""

# problem: tanhs
# device: cpu
# verdict: rejected|no_gain|crashed
# defence: processes are stopped again until none is left running

import os
import signal
import time

import torch
from torch import nn


def run():
    """Lives for a millisecond of work and hands on; process 1 of the namespace, the runner, is woken."""
    while True:
        until = time.monotonic() + 1e-3
        while time.monotonic() < until:
            sum(range(500))
        if os.fork():
            os._exit(0)
        try:
            os.kill(1 if os.getpid() != 1 else os.getppid(), signal.SIGCONT)
        except OSError:
            pass


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.started = False

    def forward(self, x, w):
        if not self.started:
            self.started = True
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            for _ in range(2):
                if os.fork() == 0:
                    try:
                        os.nice(5)
                        run()
                    finally:
                        os._exit(1)
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
