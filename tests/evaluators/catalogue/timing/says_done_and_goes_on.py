"""Computes some of the rows, reports that it is done, and computes the rest before it is stopped. Ended
processes that nobody has reaped make it slow to find the processes to stop."""

# problem: softmax
# device: cpu
# verdict: rejected|incorrect|no_gain
# defence: the clock stops when every process is stopped, not when one of them reports that it is done

import os

import torch
from torch import nn

from evaluators.system.channel import Channel

ZOMBIES, BEFORE = 80, 52


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.y = None

    def start(self, x):
        self.y = torch.empty_like(x)
        self.said = f'{{"op":"done","outputs":[{self.y.data_ptr()}]}}\n'.encode()
        for _ in range(ZOMBIES):
            if (pid := os.fork()) == 0:
                os._exit(0)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        for _ in range(20):
            torch.softmax(x, dim=-1, out=self.y)
        send = Channel.send

        def quiet(channel, message, fds=()):
            if message.get("op") != "done":
                send(channel, message, fds)

        Channel.send = quiet

    def forward(self, x):
        if self.y is None:
            self.start(x)
        torch.softmax(x[:BEFORE], dim=-1, out=self.y[:BEFORE])
        os.write(3, self.said)
        torch.softmax(x[BEFORE:], dim=-1, out=self.y[BEFORE:])
        return self.y
