"""Bad days of a model's provider, a server that has them by a plan, and searches that go through them.

A search asks three kinds of questions: for ideas, for code, for repairs. The model on the server proposes as
many ideas as it is asked for and writes a kernel for each question; the first variant of each idea fails and
is repaired. So every search that loses nothing ends with the same numbers of ideas, kernels and repairs.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import count
from pathlib import Path
from typing import Any

from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel
from search.models.providers.google import Google
from search.models.providers.openai import OpenAI
from search.proposers.llm.proposer import LLMProposer
from search.records.budget import Budget
from search.records.events import RunFinished
from search.records.model_calls import LLM, Limits, Price
from tests.search.fakes import FakeEvaluator, code_answer, correct, failed, ideas_answer, search, state_of
from tests.search.models.providers.servers import (
    GEMINI,
    OPENAI,
    RESPONSES,
    Asked,
    ModelServer,
    Reply,
    Script,
    WireFormat,
)

PHASES = ("ideas", "code", "repair")
LIMITS = Limits(output_tokens=2000, timeout_s=4.0, concurrency=16, tries=3)
NESTED = "[" * 100_000 + "]" * 100_000
NOTE = "\n\n# An earlier answer could not be used"


@dataclass(frozen=True, kw_only=True)
class Wire:
    """How an API is spoken, where its replies have the text, and its words for two kinds of ends."""

    form: WireFormat
    text: tuple[str | int, ...]
    usage: str
    cut_off: str
    refused: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    provider: Callable[..., LLM] = OpenAI

    def model(self, base_url: str, name: str = "m-1") -> LLM:
        """The model on a server."""
        return self.provider(
            model=name, base_url=base_url, key_variable="", price=Price(), limits=LIMITS, **self.options
        )

    def replaced(self, reply: Reply, path: tuple[str | int, ...], value: object) -> Reply:
        """The reply with another value at a place of its body; Ellipsis: without the place."""
        body = self.form.answer(reply)
        at: Any = body
        for key in path[:-1]:
            at = at[key]
        if value is ...:
            del at[path[-1]]
        else:
            at[path[-1]] = value
        return Reply(body=body)


WIRES = {
    "chat": Wire(
        form=OPENAI,
        text=("choices", 0, "message", "content"),
        usage="usage",
        cut_off="length",
        refused={"refusal": "I cannot."},
    ),
    "responses": Wire(
        form=RESPONSES,
        text=("output", 0, "content", 0, "text"),
        usage="usage",
        cut_off="max_output_tokens",
        refused={"refusal": "I cannot."},
        options={"api": "responses"},
    ),
    "google": Wire(
        form=GEMINI,
        text=("candidates", 0, "content", "parts", 0, "text"),
        usage="usageMetadata",
        cut_off="MAX_TOKENS",
        refused={"refusal": "SAFETY"},
        provider=Google,
    ),
}

BadDay = Callable[[Wire, Reply], Reply]
"""What is sent in place of a good reply."""


def _status(status: int, body: object = "{}", **headers: str) -> BadDay:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda wire, good: Reply(status=status, body=body, headers=sent)


def _body(body: object, **headers: str) -> BadDay:
    return _status(200, body, **headers)


def _at(depth: int, value: object) -> BadDay:
    """Another value where the text is or, counted from there, one of the containers around it."""
    return lambda wire, good: wire.replaced(good, wire.text[: len(wire.text) - depth], value)


def _usage(value: object) -> BadDay:
    return lambda wire, good: wire.replaced(good, (wire.usage,), value)


def _text(change: Callable[[str], str]) -> BadDay:
    return lambda wire, good: Reply(text=change(good.text))


def _sent(**headers: str) -> BadDay:
    """A good reply with other headers."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda wire, good: Reply(text=good.text, headers=named)


def _zipped(wire: Wire, good: Reply) -> Reply:
    body = gzip.compress(json.dumps(wire.form.answer(good)).encode())
    return Reply(body=body, headers={"Content-Encoding": "gzip"})


OUTAGES: dict[str, BadDay] = {
    "429, told when": _status(429, Retry_After="0"),
    "429, not told": _status(429),
    "429, until yesterday": _status(429, Retry_After=formatdate(0, usegmt=True)),
    "429, until soon": _status(429, Retry_After="soon"),
    "408": _status(408),
    "425": _status(425),
    "500, html": _status(500, "<html>"),
    "502, empty": _status(502, ""),
    "503, nested": _status(503, NESTED),
    "503, no UTF-8": _status(503, b"\xff\xd8"),
    "504, null": _status(504, "null"),
    "529": _status(529),
    "reset": lambda wire, good: Reply(hang_up="before"),
    "torn": lambda wire, good: Reply(text=good.text, hang_up="within"),
    "torn between chunks": lambda wire, good: Reply(text=good.text, hang_up="between chunks"),
    "slow": lambda wire, good: Reply(text=good.text, delay_s=LIMITS.timeout_s + 1),
    "204": _status(204, ""),
    "200, empty": _body(""),
    "200, html": _body("<html>Down for maintenance</html>", Content_Type="text/html"),
    "200, events": _body('data: {"choices": []}\n\ndata: [DONE]\n\n', Content_Type="text/event-stream"),
    "200, half": _body('{"choices": [{"message": {"content": "'),
    "200, null": _body("null"),
    "200, a number": _body("7"),
    "200, a list": _body("[]"),
    "200, two": _body("{}{}"),
    "200, nested": _body(NESTED),
    "200, nested inside": _body(f'{{"choices": {NESTED}}}'),
    "200, no UTF-8": _body(b"\xff\xfe\x00\xd8"),
    "200, not zipped": _body("{}", Content_Encoding="gzip"),
    "200, endless": _body(" " * 17 * 2**20),
    "200, an error": _body({"error": {"message": "overloaded", "code": 502}}),
}
"""The service fails."""

UNUSABLE: dict[str, BadDay] = {
    "text null": _at(0, None),
    "text a list": _at(0, ["hello"]),
    "text an object": _at(0, {"type": "text"}),
    "text a number": _at(0, 7),
    "message null": _at(1, None),
    "message missing": _at(1, ...),
    "message a text": _at(1, "hello"),
    "choice null": _at(2, None),
    "choices empty": lambda wire, good: wire.replaced(good, wire.text[:1], []),
    "choices null": lambda wire, good: wire.replaced(good, wire.text[:1], None),
    "refused": lambda wire, good: Reply(**wire.refused),
    "cut off": lambda wire, good: Reply(text=good.text[: len(good.text) // 2], finish=wire.cut_off),
    "empty": lambda wire, good: Reply(text=" \n"),
    "no JSON, no code": _text(lambda text: "Let me think about it."),
    "another schema": _text(lambda text: '{"ideas": [{"text": 7}]}'),
    "no ModelNew": _text(lambda text: "```python\nx = 1\n```"),
    "nested JSON": _text(lambda text: '{"ideas": ' + NESTED + "}"),
    "JSON nested just enough": _text(lambda text: '{"ideas": ' + "[" * 900 + "]" * 900 + "}"),
    "nested code": _text(lambda text: f"```python\nclass ModelNew: x = {'-' * 100_000}1\n```"),
    "long": _text(lambda text: text + "x" * 1_100_000),
}
"""The model's answer cannot be used."""

READABLE: dict[str, BadDay] = {
    "usage {}": _usage({}),
    "usage null": _usage(None),
    "usage missing": _usage(...),
    "usage a text": _usage("much"),
    "usage in fractions": _usage(dict.fromkeys(("prompt_tokens", "input_tokens", "promptTokenCount"), 0.5)),
    "usage in texts": _usage(dict.fromkeys(("prompt_tokens", "input_tokens", "promptTokenCount"), "7")),
    "a lone surrogate": lambda wire, good: Reply(
        text=good.text.replace("faster", "faster \\ud800").replace("Here it is", "Here it is \udfff")
    ),
    "as text/html": _sent(Content_Type="text/html; charset=utf-16"),
    "without a type": _sent(Content_Type="x"),
    "zipped": _zipped,
}
"""Odd, but it can be read: nothing is asked again."""

ALL = OUTAGES | UNUSABLE | READABLE


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a search made, and the words in which it ended."""

    ideas: int
    kernels: int
    repairs: int
    ended: str

    @property
    def total(self) -> int:
        """The sum."""
        return self.ideas + self.kernels + self.repairs

    @classmethod
    def of(cls, journal: Path) -> Figures:
        """The figures of a run."""
        state = state_of(journal)
        assert state.finished is not None
        variants = list(state.tree.variants.values())
        repairs = sum(bool(variant.repairs) for variant in variants)
        ideas, kernels = len(state.tree.ideas), len(variants) - repairs
        return cls(ideas=ideas, kernels=kernels, repairs=repairs, ended=state.finished.reason)


class Writer:
    """The model: something new for every question. `plan` says what becomes of the reply to a question, given
    its phase, its number among those of the phase, and the number of earlier attempts."""

    def __init__(self, plan: Callable[[Reply, str, int, int], Reply] = lambda good, *of: good) -> None:
        self._plan = plan
        self._texts = count(1)
        self._numbers: dict[str, int] = {}
        self._in_phase: Counter[str] = Counter()
        self._attempts: Counter[str] = Counter()

    def __call__(self, asked: Asked, before: int) -> Reply:
        question = asked.prompt.partition(NOTE)[0]
        phase = "ideas" if asked.schema else "repair" if "# The kernel that failed" in question else "code"
        if question not in self._numbers:
            self._numbers[question] = self._in_phase[phase]
            self._in_phase[phase] += 1
        attempt = self._attempts[question]
        self._attempts[question] += 1
        return self._plan(Reply(text=self._text(asked, phase)), phase, self._numbers[question], attempt)

    def _text(self, asked: Asked, phase: str) -> str:
        if phase != "ideas":
            fails = phase == "code" and "variant 1 of" in asked.prompt
            return code_answer(f"{'fails' if fails else 'works'} {next(self._texts)}")
        assert asked.schema is not None
        (seed,) = asked.schema["properties"]["ideas"]["items"]["properties"]["seed"]["enum"]
        wanted = re.search(r"Propose (\d+) ", asked.prompt)
        assert wanted is not None
        return ideas_answer(*(f"Use {next(self._texts)} tiles." for _ in range(int(wanted[1]))), seed=seed)


def run(
    folder: Path,
    wire: Wire,
    *scripts: Script,
    patience_s: float = 60.0,
    budget: Budget | None = None,
    **more: Any,
) -> RunFinished:
    """A search, or the rest of one, with a server, and its model, for each of the scripts."""

    def verdict(kernel: Kernel) -> Evaluation:
        return failed() if "# fails" in kernel.source else correct()

    def within(servers: list[ModelServer], left: tuple[Script, ...]) -> RunFinished:
        if left:
            with ModelServer(wire.form, left[0]) as server:
                return within([*servers, server], left[1:])
        models = {f"m-{n}": wire.model(each.base_url, f"m-{n}") for n, each in enumerate(servers)}
        sizes = {"rounds": 1, "ideas": 2, "branch": 2, "repairs": 1} | more
        limits = {} if budget is None else {"budget": budget}
        return search(
            folder / "journal.jsonl",
            proposer=LLMProposer(models, patience_s=patience_s),
            evaluator=FakeEvaluator(verdict=verdict),
            **sizes,
            **limits,
        )

    return within([], scripts)
