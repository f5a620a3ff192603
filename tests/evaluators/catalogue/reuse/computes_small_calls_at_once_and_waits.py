"""Computes all calls of a block together in the first call, by batched products, and waits for the GPU in
every call, as if that explained why a single call takes longer."""

# problem: small_tanhs
# device: cuda
# verdict: rejected|no_gain
# defence: chains of calls, in which each needs the previous answer; if they take far longer, they count

import sys

import torch
from torch import nn


def order_of_the_block():
    frame = sys._getframe()
    while frame := frame.f_back:
        if hasattr(order := frame.f_locals.get("order"), "chain"):
            return order
    return None


class ModelNew(nn.Module):
    def forward(self, x, w):
        torch.cuda.synchronize()
        order = order_of_the_block()
        call = x.storage_offset() // (2 * x.numel())
        if not order or order.chain:
            return tanhs(x, w)
        if call == order.calls[0]:
            memory = torch.empty(0, device=x.device).set_(x.untyped_storage())
            count = len(order.calls)
            ys, ws = memory[: 2 * x.numel() * count].view(count, 2, *x.shape).unbind(1)
            self.answers = tanhs(ys, ws)
        return self.answers[call]


def tanhs(x, w):
    for _ in range(8):
        x = torch.tanh(x @ w)
    return x
