"""Sends memory to itself over a socket and forgets it. The memory is in no table of descriptors and mapped
nowhere, so nothing counts it."""

# problem: tanhs
# device: cpu
# verdict: correct
# defence: only a control group sees it, which needs rights that a user lacks; it ends with the process

import os
import socket

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        fd = os.memfd_create("unseen")
        os.write(fd, b"x" * 2**20)
        socket.send_fds(self.ends[0], [b"x"], [fd])
        os.close(fd)

    def forward(self, x, w):
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
