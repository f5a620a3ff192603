"""Two references that are trained, and kernels for them: honest ones, and ones with a fault in the backward
pass."""

NORM = '''import torch
from torch import nn


class Model(nn.Module):
    """Layer norm, of which one weight is never used."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))
        self.bias = nn.Parameter(torch.zeros(columns))
        self.unused = nn.Parameter(torch.ones(4))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).square().mean(-1, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + 1e-5) * self.weight + self.bias


rows, columns = 48, 96


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
'''
MASKED = '''import torch
from torch import nn


class Model(nn.Module):
    """Scores of a linear layer, masked, as probabilities; and the largest score."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, mask):
        scores = self.linear(x).masked_fill(~mask, -1e4)
        return {"probabilities": torch.softmax(scores, -1), "linear": scores * 0.5}


rows, width = 32, 40


def get_inputs():
    return [torch.randn(rows, width), torch.rand(rows, width) < 0.7]


def get_init_inputs():
    return []
'''
NORM_KERNEL = """import torch
from torch import nn


def statistics(x):
    mean = x.mean(-1, keepdim=True)
    return mean, torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + 1e-5)


class Norm(torch.autograd.Function):
    kept = {{}}

    @staticmethod
    def forward(ctx, x, weight, bias):
        mean, rstd = statistics(x)
        {save}
        return (x - mean) * rstd * weight + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight, mean, rstd = {saved}
        hat = (x - mean) * rstd
        inner = grad * weight
        dx = rstd * (inner - inner.mean(-1, keepdim=True) - hat * (inner * hat).mean(-1, keepdim=True))
        dweight, dbias = (grad * hat).sum(0), grad.sum(0)
        {after}
        return dx, dweight, dbias


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones({columns}))
        self.bias = nn.Parameter(torch.zeros({columns}))
        self.unused = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return {call}
"""
SAVE, SAVED = "ctx.save_for_backward(x, weight, mean, rstd)", "ctx.saved_tensors"
CALL = "Norm.apply(x, self.weight, self.bias)"


def norm(*, save: str = SAVE, saved: str = SAVED, after: str = "pass", call: str = CALL) -> str:
    return NORM_KERNEL.format(save=save, saved=saved, after=after, call=call, columns=96)


STALE = "Norm.kept.setdefault('saved', tuple(each.detach().clone() for each in (x, weight, mean, rstd)))"
ACCUMULATED = (
    "Norm.kept['dw'] = dweight = Norm.kept.get('dw', torch.zeros_like(dweight)).add_(dweight); "
    "dweight = dweight.clone()"
)
ORDER = "g = torch.Generator(); g.seed(); order = torch.randperm(len(grad), generator=g); "
"""Another order of the rows in each call, as atomic additions have it."""
WRONG = {
    "no reduction over the batch": norm(after="dweight = grad[0] * hat[0]"),
    "no epsilon in the backward pass": norm(
        after="r = torch.rsqrt((x - mean).square().mean(-1, keepdim=True)); h = (x - mean) * r; "
        "dx = r * (inner - inner.mean(-1, keepdim=True) - h * (inner * h).mean(-1, keepdim=True))"
    ),
    "wrong saved statistics": norm(
        save="ctx.save_for_backward(x, weight, mean, 1 / (x.std(-1, keepdim=True) + 1e-5))"
    ),
    "stale saved tensors": norm(save=STALE, saved="Norm.kept['saved']"),
    "accumulated into instead of written": norm(after=ACCUMULATED),
    "sums in bfloat16": norm(after="dweight = (grad * hat).bfloat16().sum(0).float()"),
    "a term is missing": norm(after="dx = rstd * (inner - inner.mean(-1, keepdim=True))"),
    "no gradient of the bias": norm(after="dbias = None"),
    "a race: each call loses a row": norm(after=ORDER + "dbias = grad[order[1:]].sum(0)"),
    "a race in bfloat16": norm(
        after=ORDER
        + "dbias = sum((grad[o].bfloat16() for o in order), torch.zeros(96, dtype=torch.bfloat16)).float()"
    ),
    "a mean in place of a sum": norm(after="dbias = grad.mean(0)"),
    "ones in place of the upstream gradient": norm(after="dbias = torch.full_like(dbias, len(grad))"),
    "a gradient of a weight that is not used": norm(
        call=f"{CALL} + (self.unused - self.unused.detach()).sum()"
    ),
    "no backward pass": norm(call="Norm.apply(x.detach(), self.weight.detach(), self.bias.detach())"),
}
ATOMICS = "dweight, dbias = (sum(x[o] for o in order) for x in (grad * hat, grad))"
HONEST = {
    "by autograd": norm(call="((lambda m, r: (x - m) * r)(*statistics(x))) * self.weight + self.bias"),
    "by hand": norm(),
    "PyTorch's own": norm(call="nn.functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-5)"),
    "statistics computed again": norm(
        save="ctx.save_for_backward(x, weight)",
        saved="(*ctx.saved_tensors, *statistics(ctx.saved_tensors[0]))",
    ),
    "sums by a product": norm(after="dweight, dbias = torch.ones_like(x[:, 0]) @ (grad * hat), grad.sum(0)"),
    "sums in parts": norm(after="dweight = sum((grad * hat)[n::4].sum(0) for n in range(4))"),
    "sums in another order each time": norm(after=ORDER + ATOMICS),
    "sums in float64": norm(after="dweight = (grad.double() * hat).sum(0).float()"),
}
MASKED_KERNEL = """import torch
from torch import nn


class Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, mask):
        ctx.save_for_backward(mask)
        return scores.masked_fill(~mask, -1e4)

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return {grad}, None


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(40, 40)

    def forward(self, x, mask):
        scores = Scores.apply(self.linear(x), mask)
        return {{"probabilities": torch.softmax(scores, -1), "linear": scores * 0.5}}
"""
OF_MASKED = {
    "by hand": (MASKED_KERNEL.format(grad="grad.masked_fill(~mask, 0.0)"), "correct"),
    "a mask forgotten": (MASKED_KERNEL.format(grad="grad"), "incorrect"),
}
