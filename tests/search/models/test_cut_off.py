"""Answers that were cut off: continued, begun anew, or read as far as they go."""

from __future__ import annotations

import pytest

from search.models.cut_off import continuations, continued
from search.records.model_calls import Answer, CallFailed, Cause
from tests.search.model_client_fakes import LIMITS, USED, FakeModel, WatchedClient

WHOLE = "Here:\n```python\nimport torch\nvalues = compute(1, 2)\nclass ModelNew: ...\n```\n"
CUT = WHOLE.index("pute(")
BEGUN, REST = WHOLE[:CUT], WHOLE[CUT:]
CODE = "import torch\n\ndef f(x):\n    if x:\n        y = x\n        return y\n"
LINE = BEGUN.rindex("\n") + 1


def cut_off(text: str) -> CallFailed:
    return CallFailed(Cause.CUT_OFF, "longer than 9 tokens", usage=USED, text=text)


@pytest.mark.parametrize(
    ("rest", "whole"),
    [
        (REST, WHOLE),
        (f"```python\n{REST}", WHOLE),
        (f"```python\n{WHOLE[LINE:]}", WHOLE),
        (WHOLE, WHOLE),
        ("Shorter:\n```\nimport torch\nvalues = 3\n```", "Shorter:\n```\nimport torch\nvalues = 3\n```"),
    ],
    ids=["rest", "in a fence", "from the line's start", "anew", "anew and shorter"],
)
def test_an_answer_is_continued_or_starts_anew(rest: str, whole: str) -> None:
    assert continued(BEGUN, rest) == whole


@pytest.mark.parametrize("cut", range(CODE.index("y = ") - 9, CODE.index("y = ") + 2))
@pytest.mark.parametrize("again", [False, True], ids=["exactly", "from the line's start"])
def test_a_line_that_was_cut_anywhere_is_among_the_continuations(cut: int, again: bool) -> None:
    rest = CODE[CODE.rindex("\n", 0, cut) + 1 if again else cut :]
    assert CODE in continuations(CODE[:cut], rest)


def test_the_rest_of_an_answer_is_read_with_its_beginning(watched: WatchedClient) -> None:
    def read(text: str) -> str:
        if text != WHOLE:
            raise ValueError("not whole")
        return text

    middle = WHOLE[CUT : CUT + 12]
    rest = Answer(text=WHOLE[CUT + 12 :], usage=USED)
    model = FakeModel(cut_off(BEGUN), cut_off(middle), rest)
    assert watched.ask(model, read=read) == WHOLE
    asked = [question.prompt for question in model.asked]
    assert all("write only the rest" in prompt for prompt in asked[1:])
    assert BEGUN + middle in asked[2], "all that there is so far is shown"


def test_what_there_is_counts_once_no_model_is_left(watched: WatchedClient) -> None:
    models = [FakeModel(cut_off(text), name=f"fake/{text}") for text in ("a", "b")]
    assert watched.ask(*models) == "b"
    assert len(watched.calls) == 2 * LIMITS.tries
