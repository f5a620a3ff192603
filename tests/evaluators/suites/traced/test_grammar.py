"""Calls as text: what is written is read again, what is wrong is told by its place, nothing is evaluated."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluators.suites.traced.call import (
    CONSTANTS,
    DTYPES,
    SHORT,
    Constant,
    Device,
    Tensor,
    TracedCall,
    Value,
)
from evaluators.suites.traced.grammar import BadTrace, parse_arguments, write_arguments

SIZES = st.integers(0, 2**40)
DEVICE_NAMES = st.sampled_from(["cpu", "cuda", "cuda:1", "meta"])
STRINGS = st.text(max_size=12).filter(lambda text: text not in DTYPES)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = tuple(draw(st.lists(SIZES, max_size=4)))
    strides = st.tuples(*(SIZES for _ in shape))
    return Tensor(
        shape=shape,
        dtype=draw(st.sampled_from(sorted(SHORT))),
        stride=draw(st.none() | strides),
        device=draw(st.none() | DEVICE_NAMES),
    )


LEAVES: st.SearchStrategy[Value] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | STRINGS
    | tensors()
    | st.sampled_from(CONSTANTS).map(Constant)
    | DEVICE_NAMES.map(Device)
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=8)
CALLS = st.builds(
    TracedCall,
    operator=st.just("aten.add.Tensor"),
    arguments=st.lists(VALUES, max_size=4).map(tuple),
    keywords=st.dictionaries(st.text(max_size=6), VALUES, max_size=3),
)


@pytest.mark.slow
@settings(max_examples=40)
@given(CALLS)
def test_what_is_written_is_read_again(call: TracedCall) -> None:
    """`repr` tells 1 from 1.0 and True, which are equal."""
    text = write_arguments(call)
    assert "\n" not in text
    assert repr(parse_arguments(text)) == repr((call.arguments, dict(call.keywords)))


@pytest.mark.slow
@given(st.text(alphabet="T([{}]),:=0123-.einf'\"\\ torchNa", max_size=40))
def test_any_text_is_a_call_or_a_bad_trace(text: str) -> None:
    try:
        parse_arguments(text)
    except BadTrace as error:
        said = str(error)
    else:
        return
    assert said.startswith("line 1, column ")
    assert "\n" not in said


X = Tensor(shape=(2, 3), dtype="float16")


@pytest.mark.parametrize(
    ("text", "arguments", "keywords"),
    [
        ("((T([2, 3], f16),), {})", (X,), {}),
        ("((T([2, 3], f16)), {})", (X,), {}),
        ("'((T([2, 3], f16),), {})'", (X,), {}),
        (
            "((T((2, 3), 'f16', None, 'cpu'),), {})",
            (Tensor(shape=(2, 3), dtype="float16", device="cpu"),),
            {},
        ),
        (
            "((T([2, 3], f16, stride=(1, 2)),), {})",
            (Tensor(shape=(2, 3), dtype="float16", stride=(1, 2)),),
            {},
        ),
        (
            "((), {'dtype': th.float16, 'layout': torch.strided, 'other': 'f16'})",
            (),
            {"dtype": Constant("float16"), "layout": Constant("strided"), "other": Constant("float16")},
        ),
        (
            "((torch.device('cuda', 0), device(type='cuda', index=1), \"torch.device('cpu')\", 'cuda'), {})",
            (Device("cuda:0"), Device("cuda:1"), Device("cpu"), "cuda"),
            {},
        ),
        ("((-inf, 1e-05, -3.4e+38, .5, 1., -7), {},)", (-math.inf, 1e-05, -3.4e38, 0.5, 1.0, -7), {}),
        ("(([None, True, [T([], i64)]],), {})", ((None, True, (Tensor(shape=(), dtype="int64"),)),), {}),
    ],
)
def test_the_forms_of_the_published_traces(
    text: str, arguments: tuple[Value, ...], keywords: dict[str, Value]
) -> None:
    assert parse_arguments(text) == (arguments, keywords)


def test_not_a_number_is_one() -> None:
    arguments, _ = parse_arguments(write_arguments(TracedCall(operator="aten.x", arguments=(math.nan,))))
    assert isinstance(arguments[0], float) and math.isnan(arguments[0])


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("", 1, "'(' is expected, not the end of the line"),
        ("((T([2], f16),), {}", 20, "')' is expected, not the end of the line"),
        ("((1,), {}) x", 12, "'x' after the end of the call"),
        ("((1 2), {})", 5, "',' or ')' is expected, not '2'"),
        ("((1,,), {})", 5, "a value is expected, not ','"),
        ("((T([2], f61),), {})", 10, "unknown name f61; did you mean f64?"),
        ("((torch.chanels_last,), {})", 3, "did you mean torch.channels_last?"),
        ("((os.system('true'),), {})", 3, "unknown name os.system"),
        ("((__import__('os'),), {})", 3, "unknown name __import__"),
        ("((2**99999,), {})", 4, "'**99999,), {' is neither a value nor a mark"),
        ("((T([2, -1], f16),), {})", 3, "a shape must be a list of non-negative whole numbers"),
        ("((T([2], f16, [1, 2]),), {})", 3, "2 strides do not fit 1 dimensions"),
        ("((T([2]),), {})", 3, "missing 1 required positional argument: 'dtype'"),
        ("((T([2], f16, strides=[1]),), {})", 3, "unexpected keyword argument 'strides'"),
        ("((T([2], 'x'),), {})", 3, "'x' is not a tensor type"),
        ("((T([2], f16, None, 'a b'),), {})", 3, "'a b' is not a device"),
        ("((), {'a': 1, 'a': 2})", 15, "the argument 'a' is given twice"),
        ("((), {a: 1})", 7, "the name of an argument is expected in quotes, not 'a'"),
        ("(('abc), {})", 3, "is neither a value nor a mark"),
        ("((" + "[" * 30, 23, "more than 20 brackets are open"),
        ("((" + "9" * 5000 + "), {})", 3, "Exceeds the limit"),
    ],
)
def test_an_error_names_its_place(text: str, column: int, why: str) -> None:
    with pytest.raises(BadTrace) as caught:
        parse_arguments(text, where="line 7", column=1)
    assert str(caught.value).startswith(f"line 7, column {column}: ")
    assert why in str(caught.value)


@pytest.mark.parametrize("text", ["f16", "torch.device('cpu')"])
def test_a_string_that_would_be_read_as_something_else_is_not_written(text: str) -> None:
    with pytest.raises(ValueError, match="it would be parsed as"):
        write_arguments(TracedCall(operator="aten.x", arguments=(text,)))


def test_records_refuse_what_the_text_cannot_say() -> None:
    for make in (
        lambda: Constant("float17"),
        lambda: Device("GPU 0"),
        lambda: Tensor(shape=(1,), dtype="f16"),
    ):
        with pytest.raises(ValueError, match=r"is not a "):
            make()
