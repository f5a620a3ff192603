"""A person or an agent in place of a model: questions are files, and the answers are files next to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from evaluators.base.atomic_write import write_atomically
from evaluators.records.problem import content_id
from search.records.model_calls import Answer, CallFailed, Cause, Limits, Price, Question, Usage

POLL_EVERY_S = 0.3
SETTLED_POLLS = 2
"""An answer is read once it is unchanged for this number of polls, because it may be written bit by bit."""


class Mailbox:
    """Writes each question to `mailbox/<number>-<purpose>-<hash>.md` in the run's folder and waits for the
    answer in a file of the same name that ends in `.answer.md`.

    A question that was asked before still has its file, so a resumed run finds an answer that arrived in
    between. After an unusable answer, it waits until the file changes. The answer `skip` skips the question.
    `sleep` pauses between two polls; tests replace it.
    """

    def __init__(
        self,
        *,
        name: str = "mailbox",
        limits: Limits | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self.price = Price(input=0.0, output=0.0)
        self.limits = limits or Limits(timeout_s=7 * 24 * 3600, concurrency=256, tries=10)
        self._sleep = sleep
        self._folder: Path | None = None
        self._taken: dict[Path, int] = {}
        """The modification times, in ns, of the answers read so far."""

    def refusal(self) -> str | None:
        """Returns None: nothing has to be installed or set."""
        return None

    def begin(self, folder: Path) -> None:
        """Remembers the run's folder."""
        self._folder = folder / "mailbox"

    async def complete(self, question: Question) -> Answer:
        """Waits for the answer's file. Raises CallFailed if it is not text."""
        path = self._post(question)
        answer = path.with_suffix(".answer.md")
        seen, polls = (0, 0), 0
        while polls < SETTLED_POLLS:
            await self._sleep(POLL_EVERY_S)
            found = answer.stat() if answer.exists() else None
            now = (found.st_size, found.st_mtime_ns) if found else (0, 0)
            is_new = now[0] > 0 and now[1] != self._taken.get(answer)
            polls = polls + 1 if is_new and now == seen else 0
            seen = now
        self._taken[answer] = seen[1]
        try:
            text = answer.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = f"{answer.name} cannot be read: {error}"
            raise CallFailed(Cause.MALFORMED, reason, usage=Usage()) from error
        if text.strip().lower() == "skip":
            raise CallFailed(Cause.SKIPPED, "")
        return Answer(text=text, usage=Usage())

    async def close(self) -> None:
        """Leaves the files in place."""

    def _post(self, question: Question) -> Path:
        """The question's file, found or written."""
        assert self._folder is not None, "begin() comes first"
        self._folder.mkdir(exist_ok=True)
        identity = content_id(question.system, question.prompt)
        for path in self._folder.glob(f"*-{identity}.md"):
            return path
        number = len([path for path in self._folder.glob("*.md") if not path.stem.endswith(".answer")]) + 1
        path = self._folder / f"{number:04d}-{question.purpose}-{identity}.md"
        where = f"Write the answer to `{path.stem}.answer.md` next to this file (`skip` skips the question)."
        text = f"{where}\n\n{question.system}\n{question.prompt}"
        if question.schema is not None:
            schema = json.dumps(question.schema, indent=2)
            text += f"\nThe JSON schema:\n\n```json\n{schema}\n```\n"
        write_atomically(path, text)
        return path
