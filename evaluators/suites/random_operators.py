"""Checks for the outputs of operators that draw random numbers, valid for any numbers drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from evaluators.reference.random_outputs import Always, Check, Share, ValueSample
from evaluators.suites.traced.call import TracedCall, tensors_of
from evaluators.suites.traced.grammar import call_of
from evaluators.suites.traced.inputs import arguments_by_name, base_of, operator_of, takes_tensors

if TYPE_CHECKING:
    import torch

Given = Mapping[str, Any]
"""The arguments of a call by name."""


def is_random(call: TracedCall) -> bool:
    """Whether the call draws random numbers; it does not if its dropout is off, or outside of training."""
    import torch

    given = arguments_by_name(call)
    seeded = torch.Tag.nondeterministic_seeded in operator_of(call.operator).tags
    return seeded and given.get("dropout_p", 1.0) != 0.0 and given.get("training") is not False


def is_known(call: TracedCall) -> bool:
    """Whether there are checks for such a call. With a dropout probability of 1, nothing is left to check."""
    given = arguments_by_name(call)
    return base_of(call.operator) in (*DROPOUTS, *RRELUS, *CHECKS) and given.get("p") != 1


def numbers_of(call: TracedCall) -> int:
    """How many random numbers the call draws, estimated from its sizes or its largest tensor."""
    given = arguments_by_name(call)
    if "n" in given:
        return int(given["n"])
    sizes = [given["size"]] if "size" in given else []
    sizes += [tensor.shape for value in given.values() for tensor in tensors_of(value)]
    return max(map(math.prod, sizes), default=0)


def checks_of(operator: str, text: str, inputs: list[Any], outputs: list[torch.Tensor]) -> list[Check]:
    """The checks of the outputs for these inputs of the call in the text."""
    given = arguments_by_name(call_of(operator, text))
    schema = operator_of(operator)._schema
    names = [each.name for each in schema.arguments if takes_tensors(each)]
    given.update(zip(names, inputs, strict=True))
    base = base_of(operator)
    changed = in_place = operator.split(".")[1].endswith("_")
    if base in DROPOUTS:
        found = _dropout(given, outputs, in_place=in_place)
    elif base in RRELUS:
        found = _rrelu(given, outputs)
    else:
        changed = len(outputs) > 1
        found = [
            each
            for number, out in enumerate(outputs)
            for each in CHECKS[base](given, out.detach(), f"output {number}" if number else "the output")
        ]
    if changed:
        found.append(
            Always(name="the returned and the changed tensor are equal", holds=outputs[0] == outputs[1])
        )
    return found


def _eps(tensor: torch.Tensor) -> float:
    import torch

    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0


def _close(out: torch.Tensor, right: torch.Tensor, like: torch.Tensor, roundings: int = 1) -> torch.Tensor:
    """Where it equals the right value in float64 up to this number of roundings of the type of `like`."""
    import torch

    eps, least = _eps(like), torch.finfo(like.dtype).smallest_normal
    return (out - right).abs() <= roundings * eps * right.abs() + least * eps


def _dropout(given: Given, outputs: list[torch.Tensor], *, in_place: bool) -> list[Check]:
    """Kept values are the input / (1 - p), up to two roundings; the others are 0."""
    import torch

    out, own, p = outputs[0].double(), given["input" if "input" in given else "self"], float(given["p"])
    right = own.double() / (1 - p) if given["train"] is not False else own.double()
    has_mask = len(outputs) > 1 and not in_place
    kept = outputs[1].bool() if has_mask else out != 0
    close = _close(out, right, own, 2 if own.dtype in (torch.float32, torch.float64) else 1)
    found: list[Check] = [
        Always(name="kept values are the input / (1 - p)", holds=close | (out == right) | ~kept),
        Always(name="other values are 0", holds=kept | (out == 0)),
    ]
    kept = kept if has_mask else kept[own != 0]
    share = 1 - p if given["train"] is not False else 1.0
    found.append(Share(name="share of values that are kept", hits=kept, probability=share))
    found.append(ValueSample(name="which values are kept", values=kept.to(torch.uint8)))
    return found


def _rrelu(given: Given, outputs: list[torch.Tensor]) -> list[Check]:
    """The noise output is 1 where the input is positive and random elsewhere; the output is the input times
    the noise."""
    import torch

    own, out, noise = given["self"], outputs[0].double(), outputs[-1].double()
    close, eps = _close(out, own.double() * noise, own), _eps(outputs[-1])
    inside = (noise >= float(given["lower"]) * (1 - eps)) & (noise <= float(given["upper"]) * (1 + eps))
    return [
        Always(name="the output is the input times the noise", holds=close),
        Always(name="the noise is 1 or in its range", holds=torch.where(own > 0, noise == 1, inside)),
        ValueSample(name="the noise", values=noise, eps=eps),
    ]


def _poisson(given: Given, out: torch.Tensor, name: str) -> list[Check]:
    """Compared in standard deviations from the mean, so that the wrong rate at a place shows."""
    rate = _double(given["self"], out)
    return [
        _whole(out, 0, None, name),
        Always(name=f"{name} is 0 where the rate is", holds=(out == 0) | (rate > 0)),
        ValueSample(name=name, values=(out.double() - rate) / rate.clamp(min=1e-12).sqrt(), eps=_eps(out)),
    ]


def _normal(given: Given, out: torch.Tensor, name: str) -> list[Check]:
    """Compared in standard deviations from the mean."""
    import torch

    mean, std = (_double(given.get(each, default), out) for each, default in (("mean", 0), ("std", 1)))
    values = (out.double() - mean) / torch.where(std > 0, std, 1.0)
    return [ValueSample(name=name, values=values, eps=_eps(out))]


def _positive(given: Given, out: torch.Tensor, name: str) -> list[Check]:
    return [_in(out, 0, None, name), ValueSample(name=name, values=out, eps=_eps(out))]


def _cauchy(given: Given, out: torch.Tensor, name: str) -> list[Check]:
    return [ValueSample(name=name, values=out, eps=_eps(out))]


def _uniform(given: Given, out: torch.Tensor, name: str) -> list[Check]:
    low, high = (_rounded(given[each], out) for each in ("from", "to"))
    return [_in(out, low, high, name), ValueSample(name=name, values=out, eps=_eps(out))]


def _rand(given: Given, out: torch.Tensor, name: str) -> list[Check]:
    support = Always(name=f"{name} lies in [0, 1)", holds=(out >= 0) & (out < 1))
    return [support, ValueSample(name=name, values=out, eps=_eps(out))]


def _randint(given: Given, out: torch.Tensor, name: str) -> list[Check]:
    return [_whole(out, given.get("low", 0), given["high"] - 1, name), ValueSample(name=name, values=out)]


def _random(given: Given, out: torch.Tensor, name: str) -> list[Check]:
    high = given.get("to")
    support = _whole(out, given.get("from") or 0, None if high is None else high - 1, name)
    return [support, ValueSample(name=name, values=out)]


def _geometric(given: Given, out: torch.Tensor, name: str) -> list[Check]:
    return [_whole(out, 1, None, name), ValueSample(name=name, values=out)]


def _bernoulli(given: Given, out: torch.Tensor, name: str) -> list[Check]:
    """Compared minus the probability, so that the wrong probability at a place shows."""
    p = _double(given["self"] if given.get("p") is None else given["p"], out).expand(out.shape)
    return [
        Always(name=f"{name} is 0 or 1", holds=(out == 0) | (out == 1)),
        Share(name=f"share of ones in {name}", hits=out == 1, probability=p),
        ValueSample(name=name, values=out.double() - p),
    ]


def _randperm(given: Given, out: torch.Tensor, name: str) -> list[Check]:
    import torch

    numbers = torch.arange(out.numel(), device=out.device)
    holds = out.long().sort().values == numbers
    return [Always(name=f"{name} has each number once", holds=holds), ValueSample(name=name, values=out)]


def _multinomial(given: Given, out: torch.Tensor, name: str) -> list[Check]:
    """Compares the categories, and their weights, which show whether each row's own weights were used."""
    shares = given["self"].double()
    shares = shares / shares.sum(-1, keepdim=True)
    inside = (out >= 0) & (out < shares.shape[-1])
    drawn = shares.gather(-1, out.clamp(0, shares.shape[-1] - 1))
    found: list[Check] = [
        Always(name=f"{name} is the number of a category whose weight is not 0", holds=inside & (drawn > 0)),
        ValueSample(name=name, values=out),
        ValueSample(name=f"weight of {name}", values=drawn, eps=_eps(given["self"])),
    ]
    if not given["replacement"]:
        ordered = out.sort(-1).values
        found.append(Always(name=f"{name} has no category twice", holds=ordered.diff(dim=-1) > 0))
    return found


def _in(out: torch.Tensor, low: float, high: float | None, name: str) -> Always:
    holds = out >= low if high is None else (out >= low) & (out <= high)
    return Always(name=f"{name} lies in [{low}, {'inf' if high is None else high}]", holds=holds)


def _whole(out: torch.Tensor, low: int, high: int | None, name: str) -> Always:
    inside = _in(out, low, high, name)
    return Always(name=f"{inside.name} and is whole", holds=inside.holds & (out == out.round()))


def _double(value: Any, like: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.as_tensor(value, dtype=torch.float64, device=like.device)


def _rounded(value: float, like: torch.Tensor) -> float:
    """The value rounded to the tensor's type."""
    return like.new_tensor(value).item()


DROPOUTS = ("native_dropout", "dropout")
RRELUS = ("rrelu_with_noise",)
CHECKS: Mapping[str, Callable[[Given, Any, str], list[Check]]] = {
    "normal": _normal,
    "randn": _normal,
    "randn_like": _normal,
    "poisson": _poisson,
    "log_normal": _positive,
    "exponential": _positive,
    "cauchy": _cauchy,
    "uniform": _uniform,
    "rand": _rand,
    "rand_like": _rand,
    "randint": _randint,
    "randint_like": _randint,
    "random": _random,
    "geometric": _geometric,
    "bernoulli": _bernoulli,
    "randperm": _randperm,
    "multinomial": _multinomial,
}
"""By operator name, the function that makes the checks of one output."""
