"""Input distributions in addition to the problem's own: a kernel that is right only on the benchmark's
numbers is wrong, whichever tolerance applies.

Each distribution changes the inputs that the reference draws. The reference's answer to them is the right
one; distributions on which the reference itself is not right are left out (see `usable_distributions.py`).
All draws come from torch's global generators, so that the same seed gives the same inputs.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evaluators.reference.accuracy.differences import largest_of
from evaluators.reference.containers import map_tensors
from evaluators.reference.inputs.border_places import border_places
from evaluators.reference.inputs.strided_layouts import rewritten

if TYPE_CHECKING:
    import torch

    Change = Callable[[torch.Tensor], torch.Tensor]

NEAR = 7
"""Exponent of the scales that every type can represent."""
FAR = (60, 40, 30, 20, 14, 10)
"""Candidate exponents of the largest and smallest scales."""
FAR_OUT = 1e4
"""Size of the single outlier, as a multiple of the rms."""
SPIKE = 230.0
"""Size of each row's spike, as a multiple of the rms, of which each row uses at least three quarters: e to
this power overflows float32, but its square does not overflow float16."""
OUTLYING = 2.5
"""Size of an outlier at a border, as a multiple of the rms and of the square root of the elements that are
reduced together: large enough that a variance taken around it cancels, small enough to leave the others
their share."""
OUTLIERS_SHARE = 1 / 8
"""The largest share of the elements that are outliers at borders."""
MOST_NONFINITE = 64
"""Elements of a tensor that are made infinite or NaN, at most. Smaller tensors have fewer, so that most rows
and columns stay finite."""


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """`floating`, `integer` and `boolean` change the tensors of that kind; None leaves them as drawn.
    `nonfinite`: it adds infinities or NaN, with `masks` only minus infinity, as a mask does. Without
    `orders`, its values have no clear order, so that indices of maxima and the like are not judged.
    `instead`: with the same random numbers, large finite values at the places of the NaN."""

    name: str
    floating: Change | None = None
    integer: Change | None = None
    boolean: Change | None = None
    nonfinite: bool = False
    masks: bool = False
    orders: bool = True
    instead: Change | None = None
    keeps_nonfinite: bool = False
    """Whether the change itself leaves infinities and NaN as they are."""
    only: frozenset[int] | None = None
    """The numbers of the input tensors that it changes; None: all."""
    by_number: Mapping[int, Change] | None = None
    """The changes of the input tensors with these numbers, in place of those by kind."""

    def changes(self, tensor: torch.Tensor) -> bool:
        """Whether it changes this tensor."""
        return self._change(tensor) is not None and tensor.numel() > 0

    def applied(self, inputs: Any) -> Any:
        """The changed inputs, in the same layout."""
        number = -1

        def change(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal number
            number += 1
            how = self._change(tensor) if self.by_number is None else self.by_number.get(number)
            if how is None or not tensor.numel() or (self.only is not None and number not in self.only):
                return tensor
            found = rewritten(tensor, _changed(how, tensor.detach(), restore=not self.keeps_nonfinite))
            return found.requires_grad_(tensor.requires_grad)

        return map_tensors(change, inputs)

    def finite(self) -> Distribution:
        """With large finite values in place of NaN."""
        return replace(self, floating=self.instead, nonfinite=False)

    def judges(self, dtype: torch.dtype) -> bool:
        """Whether outputs of a type that is not floating are judged. What NaN is as a small integer is
        undefined, so then only indices and truth values are."""
        return self.orders and (
            not self.nonfinite or self.masks or str(dtype) in ("torch.int64", "torch.bool")
        )

    def _change(self, tensor: torch.Tensor) -> Change | None:
        if tensor.is_floating_point() or tensor.is_complex():
            return self.floating
        return self.boolean if str(tensor.dtype) == "torch.bool" else self.integer


def _changed(how: Change, tensor: torch.Tensor, *, restore: bool) -> torch.Tensor:
    """Applies the change to complex tensors as pairs and to half types in float32. `restore` puts back the
    non-finite numbers that the problem's own inputs have."""
    import torch

    if tensor.is_complex():
        return torch.view_as_complex(how(torch.view_as_real(tensor.resolve_conj())).contiguous())
    if not tensor.is_floating_point():
        return how(tensor)
    wide = tensor.float() if tensor.element_size() < 4 else tensor
    found = how(wide)
    if restore and not math.isfinite(largest_of(wide)):  # `isfinite` takes several passes on a GPU
        found = found.where(wide.isfinite(), wide)
    return found.to(tensor.dtype)


def _rms(x: torch.Tensor) -> torch.Tensor:
    """The rms of the finite elements; 1 if all are zero."""
    import torch

    norm, count = torch.linalg.vector_norm(x, dtype=torch.float64), x.numel()
    if not norm.isfinite():
        finite = x.isfinite()
        norm, count = torch.linalg.vector_norm(x.where(finite, 0.0), dtype=torch.float64), int(finite.sum())
    found: torch.Tensor = norm / math.sqrt(max(count, 1))
    return found.where(found > 0, 1.0).to(x.dtype)


def scaled(exponent: int) -> Change:
    """Multiplies all elements by 2 to this power, which is exact."""
    return lambda x: x * 2.0**exponent


def _unequal_scales(x: torch.Tensor) -> torch.Tensor:
    """Multiplies each tensor by a random power of two."""
    import torch

    return x * 2.0 ** int(torch.randint(-NEAR, NEAR + 1, ()))


def _shifted(x: torch.Tensor) -> torch.Tensor:
    return x + 10


def _negative(x: torch.Tensor) -> torch.Tensor:
    """All elements so far below zero that exp gives 0, which exposes a maximum that is initialised with 0."""
    return -(x.abs() + _rms(x)) * 256


def _whole_numbers(x: torch.Tensor) -> torch.Tensor:
    return (x / _rms(x) * 4).round().clamp(-64, 64)


def _sparse(x: torch.Tensor) -> torch.Tensor:
    """Small numbers rather than zeros: with many equal numbers, the rounding errors of a long sum add up."""
    import torch

    return x * torch.where(torch.rand_like(x) < 0.1, 1.0, 2.0**-12)


def _constant_rows(x: torch.Tensor) -> torch.Tensor:
    """Numbers with few bits, whose sums are exact in any order; otherwise equal rounding errors would add
    up."""
    return x[..., :1].bfloat16().to(x.dtype).expand_as(x) if x.dim() else x


def _uneven(x: torch.Tensor) -> torch.Tensor:
    """Scale and mean grow along every dimension, so that no part represents the whole. The scale grows by
    four in all: with more, the exponentials of most elements are below half an ulp of the largest, and a
    sequential sum loses them."""
    import torch

    found, step = x, _rms(x)
    axes = [axis for axis, size in enumerate(x.shape) if size > 1]
    for axis in axes:
        form = [1] * axis + [-1] + [1] * (x.dim() - axis - 1)
        ramp = torch.linspace(-1, 1, x.shape[axis], device=x.device, dtype=x.dtype).view(form)
        if torch.rand(()) < 0.5:
            ramp = -ramp
        found = found * 2.0 ** (ramp / len(axes)) + ramp * step
    return found


def _outlier(x: torch.Tensor) -> torch.Tensor:
    """A single huge element."""
    import torch

    flat = x.flatten().clone()
    flat[int(torch.randint(x.numel(), ()))] = FAR_OUT * _rms(x)
    return flat.view(x.shape)


def _outliers(most: float) -> Change:
    """Outliers of up to this multiple of the rms, where a kernel may take its estimate of the mean from."""

    def change(x: torch.Tensor) -> torch.Tensor:
        import torch

        count = max(1, int(OUTLIERS_SHARE * x.numel()))
        places = dict(itertools.islice(border_places(x.shape, _dice()), count))
        sizes = torch.tensor([min(OUTLYING * math.sqrt(count), most) for count in places.values()])
        sizes = sizes * (1 - torch.rand(len(sizes)) / 4) * (1 - 2 * torch.randint(2, (len(sizes),)))
        flat = x.flatten().clone()
        flat[list(places)] = sizes.to(x) * _rms(x)
        return flat.view(x.shape)

    return change


def _dice() -> random.Random:
    """For places: it continues torch's generator."""
    import torch

    return random.Random(int(torch.randint(2**62, ())))


def _spikes(x: torch.Tensor) -> torch.Tensor:
    """One element of each row, at a random place, is far above the others."""
    import torch

    if not x.dim():
        return x
    rows = x.reshape(-1, x.shape[-1]).clone()
    place = torch.randint(x.shape[-1], (len(rows), 1), device=x.device)
    return _with_spikes(x, rows, place)


def _with_spikes(x: torch.Tensor, rows: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Spikes of various sizes: with a single size, its rounding error would determine the tolerance."""
    import torch

    size = 1 - torch.rand(place.shape, dtype=x.dtype, device=x.device) / 4
    return rows.scatter_(1, place, SPIKE * _rms(x) * size).view(x.shape)


def _edge_spikes(x: torch.Tensor) -> torch.Tensor:
    """A spike in the first or one of the last four places of each row: the remainder after whole tiles."""
    import torch

    if not x.dim():
        return x
    rows, width = x.reshape(-1, x.shape[-1]).clone(), x.shape[-1]
    place = (width - torch.randint(min(5, width + 1), (len(rows), 1), device=x.device)) % width
    return _with_spikes(x, rows, place)


def _near_zero(x: torch.Tensor) -> torch.Tensor:
    """A few zeros of both signs and denormal numbers among the others. Only a few, because with many equal
    numbers the rounding errors of a long sum add up."""
    import torch

    kind = torch.randint(64, x.shape, device=x.device, dtype=torch.uint8)
    tiny = torch.finfo(x.dtype).tiny / 8
    found = x.where(kind != 0, 0.0).where(kind != 1, -0.0)
    return found.where(kind != 2, x.sign() * tiny)


def _masked(x: torch.Tensor) -> torch.Tensor:
    """Minus infinity in a random proper prefix of each row, and at random places. Rows of several elements
    are never fully masked: for those, PyTorch's own softmax kernels disagree (NaN or zero)."""
    import torch

    if not x.dim():
        return x
    width = x.shape[-1]
    length = (torch.rand((*x.shape[:-1], 1), device=x.device) ** 2 * width).long().clamp(max=width - 1)
    masked = (torch.arange(width, device=x.device) < length) | (torch.rand_like(x) < 0.05)
    masked[..., -1] &= width == 1
    return x.masked_fill(masked, -torch.inf)


def _sprinkled(x: torch.Tensor, *values: float) -> torch.Tensor:
    """Puts these values in turn at the borders of rows and tiles and at as many random places."""
    count = max(2 * len(values), min(MOST_NONFINITE, math.isqrt(x.numel()) // 4))
    dice = _dice()
    places = [place for place, _ in itertools.islice(border_places(x.shape, dice), count // 2)]
    places += [dice.randrange(x.numel()) for _ in range(count - len(places))]
    flat = x.flatten().clone()
    for number, value in enumerate(values):
        flat[places[number :: len(values)]] = value
    return flat.view(x.shape)


def _infinite(x: torch.Tensor) -> torch.Tensor:
    return _sprinkled(x, math.inf, -math.inf)


def _nan(x: torch.Tensor) -> torch.Tensor:
    return _sprinkled(x, math.nan)


def _spikes_for_nan(x: torch.Tensor) -> torch.Tensor:
    return _sprinkled(x, float(SPIKE * _rms(x)))


def _repeated(x: torch.Tensor) -> torch.Tensor:
    import torch

    return x.reshape(-1)[torch.randint(x.numel(), (), device=x.device)].expand_as(x)


def _sorted(x: torch.Tensor) -> torch.Tensor:
    return x.sort(-1).values if x.dim() else x


def _extremes(x: torch.Tensor) -> torch.Tensor:
    """Only the smallest and the largest of the original numbers."""
    return _in_runs(x, x.amin(), x.amax())


def _extremes_of_type(x: torch.Tensor) -> torch.Tensor:
    import torch

    info = torch.iinfo(x.dtype)
    return _in_runs(x, x.new_tensor(info.min), x.new_tensor(info.max))


def _in_runs(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Two values in long runs, because single products of them may fit where their sums do not: along the
    last dimension in the second half of each row, along the others in the columns of the first half."""
    import torch

    width = x.shape[-1] if x.dim() else 1
    rows = torch.rand((*x.shape[:-1], 1), device=x.device) < 0.5
    columns = torch.rand(width, device=x.device) < 0.5
    chosen = torch.where(torch.arange(width, device=x.device) < width // 2, columns, rows)
    return torch.where(chosen.view(x.shape), high, low)


def _mixed(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.rand(x.shape, device=x.device) < 0.5


def _prefixes(x: torch.Tensor) -> torch.Tensor:
    """Also an empty prefix and a whole row, if there are several rows."""
    import torch

    if not x.dim():
        return ~x
    length = torch.randint(x.shape[-1] + 1, (*x.shape[:-1], 1), device=x.device)
    if length.numel() > 1:
        rows = torch.randperm(length.numel(), device=x.device)[:2]
        length.view(-1)[rows] = torch.tensor([0, x.shape[-1]], device=x.device)
    return torch.arange(x.shape[-1], device=x.device) < length


def _nonempty_prefixes(x: torch.Tensor) -> torch.Tensor:
    import torch

    if not x.dim():
        return ~x
    length = torch.randint(1, x.shape[-1] + 1, (*x.shape[:-1], 1), device=x.device)
    return torch.arange(x.shape[-1], device=x.device) < length


OWN = Distribution(name="")
"""The problem's own."""
LARGEST, SMALLEST = "largest", "smallest"
EXTREME_INTEGERS = "extreme integers"
IGNORED, ALL_IGNORED, EMPTY_BAGS = "ignored elements", "everything ignored", "empty bags"
"""Those of `special_integers.py`."""

DISTRIBUTIONS = (
    Distribution(name="shifted", floating=_shifted, keeps_nonfinite=True),
    Distribution(name="small", floating=scaled(-NEAR), keeps_nonfinite=True),
    Distribution(name="large", floating=scaled(NEAR), keeps_nonfinite=True),
    Distribution(name="uneven", floating=_uneven),
    Distribution(name="spikes", floating=_spikes),
    Distribution(name="spikes at the edge", floating=_edge_spikes),
    Distribution(name="unequal scales", floating=_unequal_scales, keeps_nonfinite=True),
    Distribution(name="sparse", floating=_sparse),
    Distribution(name="whole numbers", floating=_whole_numbers),
    Distribution(name="negative", floating=_negative),
    Distribution(name="constant rows", floating=_constant_rows),
    Distribution(name="outlier", floating=_outlier),
    Distribution(name="outliers at borders", floating=_outliers(FAR_OUT)),
    Distribution(name="near zero", floating=_near_zero),
    Distribution(name="masked", floating=_masked, nonfinite=True, masks=True),
    Distribution(name="infinite", floating=_infinite, nonfinite=True, orders=False),
    Distribution(name="NaN", floating=_nan, nonfinite=True, instead=_spikes_for_nan),
    Distribution(name="sorted indices", integer=_sorted),
    Distribution(name="repeated indices", integer=_repeated),
    Distribution(name="extreme indices", integer=_extremes),
    Distribution(name=EXTREME_INTEGERS, integer=_extremes_of_type),
    Distribution(name="all true", boolean=lambda x: x | True),
    Distribution(name="all false", boolean=lambda x: x & False),
    Distribution(name="true at random", boolean=_mixed),
    Distribution(name="true prefixes", boolean=_prefixes),
)
"""Tried on every problem that has such inputs, in addition to the far scales (`far_scales`)."""
MILDER = {
    "outliers at borders": Distribution(name="outliers at borders", floating=_outliers(SPIKE)),
    "true prefixes": Distribution(name="true prefixes", boolean=_nonempty_prefixes),
}
"""Tried in place of the distribution of the same name if the reference is not right there: squares of these
outliers do not overflow float16, and no row is masked wholly."""


def far_scales(name: str, most: int | None = None) -> list[Distribution]:
    """The candidates for the LARGEST or the SMALLEST scale, furthest first, with exponents up to `most`."""
    sign = 1 if name == LARGEST else -1
    exponents = [each for each in FAR if most is None or each <= most]
    return [Distribution(name=name, floating=scaled(sign * each), keeps_nonfinite=True) for each in exponents]


DESCRIPTIONS = {
    "shifted": "10 is added to every element",
    "small": f"every element times 2^-{NEAR}",
    "large": f"every element times 2^{NEAR}",
    "uneven": "scale and mean grow along every dimension, so that no part stands for the whole",
    "spikes": "one element of each row is far above the others",
    "spikes at the edge": "the first or one of the last four elements of each row is far above the others",
    "unequal scales": "each input times a different power of two",
    "sparse": "nine of ten elements are near zero",
    "whole numbers": "small whole numbers",
    "negative": "every element is far below zero",
    "constant rows": "all elements of a row are equal",
    "outlier": "a single element is 10,000 times as large as the others",
    "outliers at borders": "a few elements that are first, last or next to a tile's border along some "
    "dimensions are far above or below the others",
    "near zero": "zeros of both signs and denormal numbers among the others",
    "masked": "minus infinity in a prefix of each row and at random places",
    "infinite": "a few elements, some of them at the ends of rows and tiles, are plus or minus infinity",
    "NaN": "a few elements, some of them at the ends of rows and tiles, are NaN",
    "sorted indices": "integer inputs in ascending order",
    "repeated indices": "integer inputs that are all equal",
    "extreme indices": "integer inputs in long runs of the smallest and the largest value that occurs",
    EXTREME_INTEGERS: "integer inputs in long runs of the smallest and the largest number of their type",
    "all true": "boolean inputs that are all true",
    "all false": "boolean inputs that are all false",
    "true at random": "boolean inputs of which a random half is true",
    "true prefixes": "boolean inputs that are true in a prefix of each row, which may be empty",
    IGNORED: "integers that the reference treats specially, like a loss's ignore_index, among the others",
    ALL_IGNORED: "nothing but integers that the reference treats specially, like a loss's ignore_index",
    EMPTY_BAGS: "offsets of an embedding's bags, some of which are equal, so that those bags are empty",
    LARGEST: "every element as large as the reference can handle",
    SMALLEST: "every element as small as the reference can handle",
}
"""Descriptions for the authors of kernels."""
