from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from search.models.providers.mailbox import Mailbox
from search.records.model_calls import Answer, CallFailed, Cause, Purpose, Question

QUESTION = Question(
    purpose=Purpose.IDEAS, system="You know.", prompt="What is faster?", schema={"type": "object"}
)


class Polls:
    """Lets something happen before each poll; ends with an error when nobody is to poll any more."""

    def __init__(self, *steps: object) -> None:
        self.steps = list(steps)

    async def __call__(self, _: float) -> None:
        step = self.steps.pop(0)
        if callable(step):
            step()


def posted(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "mailbox").glob("*.md") if ".answer" not in path.name)


def ask(mailbox: Mailbox, question: Question = QUESTION) -> Answer:
    return asyncio.run(mailbox.complete(question))


def test_an_answer_is_taken_when_it_does_not_change_any_more(tmp_path: Path) -> None:
    def write(text: str) -> object:
        return lambda: posted(tmp_path)[0].with_suffix(".answer.md").write_text(text)

    polls = Polls(None, None, write("fir"), write("first, "), write("first, whole"), None, None)
    mailbox = Mailbox(sleep=polls)
    mailbox.begin(tmp_path)
    assert ask(mailbox).text == "first, whole"
    assert polls.steps == []
    (path,) = posted(tmp_path)
    assert path.name.startswith("0001-ideas-")
    text = path.read_text()
    assert all(
        part in text for part in (f"{path.stem}.answer.md", "You know.", "What is faster?", '"object"')
    )


def test_the_same_question_finds_its_answer_again(tmp_path: Path) -> None:
    before, after = Mailbox(sleep=Polls(None)), Mailbox(sleep=Polls(*[None] * 3))
    before.begin(tmp_path)
    with pytest.raises(IndexError):  # nobody answers
        ask(before)
    posted(tmp_path)[0].with_suffix(".answer.md").write_text("here")
    after.begin(tmp_path)
    assert ask(after).text == "here"
    assert len(posted(tmp_path)) == 1


def test_questions_are_numbered(tmp_path: Path) -> None:
    mailbox = Mailbox(sleep=Polls())
    mailbox.begin(tmp_path)
    for prompt in ("one", "two", "one"):
        with pytest.raises(IndexError):
            ask(mailbox, Question(purpose=Purpose.CODE, system="", prompt=prompt))
    assert [path.name[:9] for path in posted(tmp_path)] == ["0001-code", "0002-code"]


def test_an_answer_that_is_not_text_is_asked_for_again(tmp_path: Path) -> None:
    mailbox = Mailbox(
        sleep=Polls(
            lambda: posted(tmp_path)[0].with_suffix(".answer.md").write_bytes(b"\xff\xfe\x00"), None, None
        )
    )
    mailbox.begin(tmp_path)
    with pytest.raises(CallFailed, match="malformed"):
        ask(mailbox)


def test_an_answer_that_could_not_be_used_is_waited_for_to_be_changed(tmp_path: Path) -> None:
    def write(text: str, at_s: int) -> object:
        def step() -> None:
            path = posted(tmp_path)[0].with_suffix(".answer.md")
            path.write_text(text)
            os.utime(path, (at_s, at_s))

        return step

    polls = Polls(write("bad", 1), None, None, None, None, write("good", 2), None, None)
    mailbox = Mailbox(sleep=polls)
    mailbox.begin(tmp_path)
    assert [ask(mailbox).text, ask(mailbox).text] == ["bad", "good"]
    assert len(posted(tmp_path)) == 1


def test_a_question_may_be_left_out(tmp_path: Path) -> None:
    mailbox = Mailbox(
        sleep=Polls(lambda: posted(tmp_path)[0].with_suffix(".answer.md").write_text("Skip\n"), None, None)
    )
    mailbox.begin(tmp_path)
    with pytest.raises(CallFailed) as caught:
        ask(mailbox)
    assert (caught.value.cause, caught.value.cause.retryable) == (Cause.SKIPPED, False)
