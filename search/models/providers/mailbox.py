"""A person or an agent in place of a model: questions are files, and the answers are files next to them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from evaluators.base.atomic_write import write_atomically
from evaluators.records.problem import content_id
from search.records.model_calls import (
    CHARACTERS_PER_TOKEN,
    Answer,
    CallFailed,
    Cause,
    Limits,
    Price,
    Question,
    Usage,
)

POLL_EVERY_S = 0.3
UNCHANGED_S = 60.0
"""Seconds after which an answer that was neither renamed into place nor closed by END counts as complete."""
END = "<!-- end -->"
INDEX = "open.txt"
STATED = re.compile(r"\A(model|conversation):[ \t]*(.+)\n")
"""A line at the top of an answer: who answered, and whether in a fresh or a continued conversation."""


class Mailbox:
    """Writes each question to `<number>-<purpose>-<hash>.md` and waits for the answer in a file of the same
    name that ends in `.answer.md`.

    An answer counts once it was renamed into place, or once its last line is `<!-- end -->`; otherwise when
    it has not changed for a minute. It may begin with lines `model: …` and `conversation: fresh` or
    `continued`. The answer `skip` skips the question. After an unusable answer, the file has to change.

    A question that was asked before still has its file, so a resumed run finds an answer that arrived in
    between.

    Args:
        name: The name in records.
        folder: The folder of the questions, which many searches may share: each has its own folder in it, and
            `open.txt` lists the open questions of all. None: the run's folder `mailbox/`.
        model: Who answers, where an answer does not say so.
        conversation: `fresh` or `continued`, where an answer does not say so.
        limits: The limits of the calls.
        sleep: Pauses between two polls; replaced in tests.

    Raises:
        ValueError: For another `conversation`.
    """

    def __init__(
        self,
        *,
        name: str = "mailbox",
        folder: str | None = None,
        model: str = "",
        conversation: str = "",
        limits: Limits | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if conversation not in ("", "fresh", "continued"):
            raise ValueError(f"llm.mailbox.conversation is {conversation!r}; it must be fresh or continued")
        self.name = name
        self.price = Price(input=0.0, output=0.0)
        self.limits = limits or Limits(timeout_s=7 * 24 * 3600, concurrency=256, tries=10)
        self._shared = Path(folder) if folder else None
        self._model, self._conversation = model, conversation
        self._sleep = sleep
        self._folder: Path | None = None
        self._listing: asyncio.Handle | None = None
        """The writing of the index that is due."""
        self._awaited: set[Path] = set()
        """The open questions whose answers were not there at the last look."""
        self._taken: dict[Path, int] = {}
        """The modification times, in ns, of the answers read so far."""

    def refusal(self) -> str | None:
        """Returns None: nothing has to be installed or set."""
        return None

    def awaited(self) -> list[str]:
        """The files of the questions that wait for an answer."""
        return sorted(map(str, self._awaited))

    def open_questions(self) -> list[Path]:
        """The files of this run's questions without an answer. Call `begin` first."""
        assert self._folder is not None, "begin() comes first"
        return _open_questions(self._folder)

    def begin(self, folder: Path) -> None:
        """Chooses the folder of this run's questions."""
        run = folder.resolve()
        search = f"{run.parent.name}-{run.name}-{content_id(str(run))[:4]}"
        self._folder = self._shared / search if self._shared else folder / "mailbox"

    async def complete(self, question: Question) -> Answer:
        """Waits for the answer's file. Raises CallFailed if it is not text."""
        path = self._post(question)
        try:
            answer, read_ns = await self._answered(path)
        finally:
            self._awaited.discard(path)
        self._taken[answer] = read_ns
        try:
            text = answer.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = f"{answer.name} cannot be read: {error}"
            raise CallFailed(Cause.MALFORMED, reason, usage=Usage()) from error
        finally:
            self._list_soon()
        return self._read(question, text)

    async def close(self) -> None:
        """Leaves the files in place."""

    async def _answered(self, path: Path) -> tuple[Path, int]:
        """The file of the complete answer to the question in this file, and its modification time in ns."""
        answer = path.with_suffix(".answer.md")
        seen, unchanged_s = (0, 0), 0.0
        while True:
            await self._sleep(POLL_EVERY_S)
            found = answer.stat() if answer.exists() else None
            now = (found.st_size, found.st_mtime_ns) if found else (0, 0)
            unchanged_s = unchanged_s + POLL_EVERY_S if now == seen else 0.0
            seen = now
            if found is None or found.st_size == 0 or found.st_mtime_ns == self._taken.get(answer):
                self._awaited.add(path)
                continue
            self._awaited.discard(path)  # somebody is writing
            if found.st_ctime_ns != found.st_mtime_ns or unchanged_s >= UNCHANGED_S or _is_closed(answer):
                return answer, found.st_mtime_ns

    def _read(self, question: Question, text: str) -> Answer:
        """The answer in a file. Raises CallFailed for `skip`."""
        stated = {"model": self._model, "conversation": self._conversation}
        while line := STATED.match(text):
            stated[line[1]], text = line[2].strip(), text[line.end() :]
        text = text.strip().removesuffix(END).strip()
        if text.lower() == "skip":
            raise CallFailed(Cause.SKIPPED, "")
        asked = len(question.system) + len(question.prompt)
        usage = Usage(input_tokens=_tokens(asked), output_tokens=_tokens(len(text)))
        return Answer(text=text, usage=usage, approximate=True, **stated)

    def _post(self, question: Question) -> Path:
        """The question's file, found or written."""
        assert self._folder is not None, "begin() comes first"
        self._folder.mkdir(parents=True, exist_ok=True)
        identity = content_id(question.system, question.prompt)
        for path in self._folder.glob(f"*-{identity}.md"):
            return path
        number = len(_questions(self._folder)) + 1
        path = self._folder / f"{number:04d}-{question.purpose}-{identity}.md"
        where = (
            f"Write the answer to `{path.stem}.answer.md` next to this file: rename it into place when it is "
            f"complete, or end it with the line `{END}`. `skip` skips the question. The first lines may say "
            "`model: …` and `conversation: fresh` or `continued`."
        )
        text = f"{where}\n\n{question.system}\n{question.prompt}"
        if question.schema is not None:
            schema = json.dumps(question.schema, indent=2)
            text += f"\nThe JSON schema:\n\n```json\n{schema}\n```\n"
        write_atomically(path, text)
        self._list_soon()
        return path

    def _list_soon(self) -> None:
        """Has the index written, once for all questions that are asked or answered at this moment."""
        if self._listing is None:
            self._listing = asyncio.get_running_loop().call_soon(self._list_open)

    def _list_open(self) -> None:
        """Writes the index of all questions without an answer, of all searches that share the folder."""
        self._listing = None
        assert self._folder is not None, "begin() comes first"
        root = self._shared or self._folder
        folders = sorted(root.iterdir()) if self._shared else [root]
        open_questions = [
            path.relative_to(root).as_posix() for folder in folders for path in _open_questions(folder)
        ]
        write_atomically(root / INDEX, "".join(f"{each}\n" for each in open_questions))


def _questions(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[0-9]*.md") if not path.stem.endswith(".answer"))


def _open_questions(folder: Path) -> list[Path]:
    return [path for path in _questions(folder) if not path.with_suffix(".answer.md").exists()]


def _is_closed(answer: Path) -> bool:
    return answer.read_bytes().rstrip().endswith(END.encode())


def _tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)
