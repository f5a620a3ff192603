from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from search.models.providers.mailbox import END, POLL_EVERY_S, UNCHANGED_S, Mailbox
from search.records.model_calls import Answer, CallFailed, Cause, Purpose, Question, Usage

QUESTION = Question(
    purpose=Purpose.IDEAS, system="You know.", prompt="What is faster?", schema={"type": "object"}
)
CLOSED = f"\n{END}\n"


class Polls:
    """Lets something happen before each poll; ends with an error when nobody is to poll any more."""

    def __init__(self, *steps: object) -> None:
        self.steps = list(steps)

    async def __call__(self, _: float) -> None:
        step = self.steps.pop(0)
        if callable(step):
            step()


def posted(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("[0-9]*.md") if ".answer" not in path.name)


def write(folder: Path, text: str | bytes, at_s: int | None = None) -> Callable[[], None]:
    """Writes an answer bit by bit, as a program does that writes into the file itself."""

    def step() -> None:
        path = posted(folder)[0].with_suffix(".answer.md")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        if at_s is not None:
            os.utime(path, (at_s, at_s))

    return step


def ask(mailbox: Mailbox, question: Question = QUESTION) -> Answer:
    return asyncio.run(mailbox.complete(question))


def begun(run: Path, *steps: object, **settings: str) -> tuple[Mailbox, Polls]:
    polls = Polls(*steps)
    mailbox = Mailbox(sleep=polls, **settings)  # type: ignore[arg-type]
    mailbox.begin(run)
    return mailbox, polls


def test_an_answer_counts_once_it_is_closed(tmp_path: Path) -> None:
    slow = (write(tmp_path, "fir"), None, None, None, write(tmp_path, "first, whole" + CLOSED))
    mailbox, polls = begun(tmp_path, None, *slow)
    assert ask(mailbox).text == "first, whole"
    assert polls.steps == []
    (path,) = posted(tmp_path / "mailbox")
    assert path.name.startswith("0001-ideas-")
    text = path.read_text()
    assert all(
        part in text for part in (f"{path.stem}.answer.md", "You know.", "What is faster?", '"object"', END)
    )
    assert str(tmp_path) not in text


def test_an_answer_counts_once_it_is_renamed_into_place(tmp_path: Path) -> None:
    def rename() -> None:
        path = posted(tmp_path)[0].with_suffix(".answer.md")
        part = path.with_suffix(".part")
        part.write_text("renamed")
        os.utime(part, (1, 1))
        part.rename(path)

    mailbox, polls = begun(tmp_path, rename)
    assert ask(mailbox).text == "renamed"
    assert polls.steps == []


def test_an_answer_that_nobody_closes_counts_when_it_has_been_unchanged_for_long(tmp_path: Path) -> None:
    polls = int(UNCHANGED_S / POLL_EVERY_S) + 1
    mailbox, left = begun(tmp_path, write(tmp_path, "typed by hand"), *[None] * (polls + 5))
    assert ask(mailbox).text == "typed by hand"
    assert 0 < len(left.steps) < 10


def test_who_answered_is_recorded(tmp_path: Path) -> None:
    text = f"model: a-model-1\nconversation: continued\n\nthe answer{CLOSED}"
    mailbox, _ = begun(tmp_path, write(tmp_path, text), model="somebody", conversation="fresh")
    assert ask(mailbox) == Answer(
        text="the answer",
        usage=Usage(input_tokens=6, output_tokens=3),
        approximate=True,
        model="a-model-1",
        conversation="continued",
    )
    other, _ = begun(
        tmp_path / "b", write(tmp_path / "b", f"x{CLOSED}"), model="somebody", conversation="fresh"
    )
    answer = ask(other)
    assert (answer.model, answer.conversation) == ("somebody", "fresh")
    with pytest.raises(ValueError, match="fresh or continued"):
        Mailbox(conversation="new")


def test_searches_share_a_folder_and_its_index(tmp_path: Path) -> None:
    shared = tmp_path / "mail"
    for name in ("one", "two"):
        mailbox, _ = begun(tmp_path / "runs" / name, folder=str(shared))
        with pytest.raises(IndexError):  # nobody answers
            ask(mailbox)
    first, second = (shared / "open.txt").read_text().splitlines()
    assert (first[:9], second[:9]) == ("runs-one-", "runs-two-")
    assert (shared / first).is_file()
    mailbox, _ = begun(tmp_path / "runs" / "one", write(shared, f"done{CLOSED}"), folder=str(shared))
    assert ask(mailbox).text == "done"
    assert (shared / "open.txt").read_text().splitlines() == [second]


def test_the_same_question_finds_its_answer_again(tmp_path: Path) -> None:
    before, _ = begun(tmp_path, None)
    with pytest.raises(IndexError):  # nobody answers
        ask(before)
    write(tmp_path, f"here{CLOSED}")()
    after, _ = begun(tmp_path, None)
    assert ask(after).text == "here"
    assert len(posted(tmp_path)) == 1


def test_questions_are_numbered(tmp_path: Path) -> None:
    mailbox, _ = begun(tmp_path)
    for prompt in ("one", "two", "one"):
        with pytest.raises(IndexError):
            ask(mailbox, Question(purpose=Purpose.CODE, system="", prompt=prompt))
    assert [path.name[:9] for path in posted(tmp_path)] == ["0001-code", "0002-code"]


def test_an_answer_that_is_not_text_is_asked_for_again(tmp_path: Path) -> None:
    mailbox, _ = begun(tmp_path, write(tmp_path, b"\xff\xfe\x00" + CLOSED.encode()))
    with pytest.raises(CallFailed, match="malformed"):
        ask(mailbox)


def test_an_answer_that_could_not_be_used_is_waited_for_to_be_changed(tmp_path: Path) -> None:
    bad, good = write(tmp_path, f"bad{CLOSED}", 1), write(tmp_path, f"good{CLOSED}", 2)
    mailbox, _ = begun(tmp_path, bad, None, None, good)
    assert [ask(mailbox).text, ask(mailbox).text] == ["bad", "good"]
    assert len(posted(tmp_path)) == 1


def test_a_question_may_be_left_out(tmp_path: Path) -> None:
    mailbox, _ = begun(tmp_path, write(tmp_path, f"Skip{CLOSED}"))
    with pytest.raises(CallFailed) as caught:
        ask(mailbox)
    assert (caught.value.cause, caught.value.cause.retryable) == (Cause.SKIPPED, False)


def test_questions_that_are_asked_together_are_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def write_atomically(path: Path, text: str) -> None:
        path.write_text(text)
        if path.name == "open.txt":
            written.append(len(text.splitlines()))

    async def sleep(_: float) -> None:
        await asyncio.sleep(0)
        if written == [8]:
            for path in posted(tmp_path):
                path.with_suffix(".answer.md").write_text(f"done{CLOSED}")

    monkeypatch.setattr("search.models.providers.mailbox.write_atomically", write_atomically)
    mailbox = Mailbox(sleep=sleep)
    mailbox.begin(tmp_path)
    questions = [Question(purpose=Purpose.CODE, system="", prompt=str(n)) for n in range(8)]

    async def main() -> list[Answer]:
        return await asyncio.gather(*map(mailbox.complete, questions))

    assert {each.text for each in asyncio.run(main())} == {"done"}
    assert written == [8, 0]
