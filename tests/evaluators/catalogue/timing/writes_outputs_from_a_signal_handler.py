"""Returns at once and lets a timer's signal handler do the work later, inside the harness's wait for the
next order."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: a private copy of the outputs is taken when the clock stops

import signal

import torch
from torch import nn

waiting = []


def work(*_):
    with torch.no_grad():
        while waiting:
            x, w, place = waiting.pop()
            for _ in range(8):
                x = torch.tanh(x @ w)
            place.copy_(x)


class ModelNew(nn.Module):
    def forward(self, x, w):
        memory, n = torch.empty(0, device=x.device).set_(x.untyped_storage()), x.numel()
        number = len(memory) // (3 * n) * 2 + x.storage_offset() // (2 * n)
        waiting.append((x, w, memory[number * n : (number + 1) * n].view_as(x)))
        signal.signal(signal.SIGALRM, work)
        signal.setitimer(signal.ITIMER_REAL, 5e-3)
        return torch.zeros_like(x)
