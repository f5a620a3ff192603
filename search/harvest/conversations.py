"""Rows as conversations: what a search would ask a model (from the prompts' templates), and the answer. The
columns follow TRL's conversational formats (huggingface.co/docs/trl/dataset_formats)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from evaluators.records.problem import Problem
from search.harvest.recorded_calls import AnsweredCall
from search.harvest.rows import Column, columns
from search.proposers.llm.measured_history import MeasuredHistory
from search.proposers.llm.prompts import Prompts
from search.records.tree import Idea, Outcome, Seed, Variant

Message = dict[str, str]

MESSAGE = columns("string", role="`system`, `user` or `assistant`", content="text of the message")
PROMPT = Column(name="prompt", type=MESSAGE, meaning="the question: a system and a user message")
ASKED = Column(
    name="asked",
    type="bool",
    meaning="whether a model was asked these very words; otherwise they are what a search would ask",
)
CONVERSATION = (
    Column(name="messages", type=MESSAGE, meaning="prompt and completion, for training on both"),
    PROMPT,
    ASKED,
    Column(name="completion", type=MESSAGE, meaning="the answer: one assistant message"),
)


@dataclass(frozen=True, kw_only=True)
class Brief:
    """What a prompt says about an idea: the kernel it starts from (None: the reference), the library entry it
    builds on, the device's `facts`, and what the rounds before measured. `asked`: the call that wrote the
    kernel, if a model was asked for it."""

    idea: Idea
    seed: Seed | None
    entry: Seed | None = None
    facts: Mapping[str, str]
    known: MeasuredHistory = field(default_factory=MeasuredHistory)
    asked: AnsweredCall | None = None


def asks_for_code(problem: Problem, brief: Brief) -> list[Message]:
    """The prompt that a model was asked or, without one, the prompt for the first and only variant."""
    if brief.asked:
        return _recorded(brief.asked)
    prompt = _prompts().code(
        problem, brief.facts, brief.idea, brief.seed, brief.entry, brief.known, (), [1], 1
    )
    return _asked(prompt)


def asks_for_repair(problem: Problem, brief: Brief, failed: Variant) -> list[Message]:
    """The prompt to repair a failed variant, as it was asked or would be."""
    if brief.asked:
        return _recorded(brief.asked)
    return _asked(_prompts().repair(problem, brief.facts, brief.idea, failed, brief.known))


def asks_for_idea(
    problem: Problem, brief: Brief, history: Sequence[Outcome], entries: Sequence[Seed]
) -> list[Message]:
    """The prompt for one idea for the brief's seed, given the history and the library entries; the brief's
    idea is not shown."""
    return _asked(
        _prompts().ideas(problem, brief.facts, brief.seed, MeasuredHistory(history, entries), entries, 1)
    )


def conversation(prompt: list[Message], answer: str, brief: Brief) -> dict[str, Any]:
    """The columns of `CONVERSATION`."""
    completion = [_message("assistant", answer)]
    messages = {"messages": [*prompt, *completion], "prompt": prompt, "completion": completion}
    return messages | {"asked": brief.asked is not None}


def choice(prompt: list[Message], chosen: str, rejected: str, *, asked: bool) -> dict[str, Any]:
    """The columns `prompt`, `asked`, `chosen` and `rejected`."""
    answers = {"chosen": chosen, "rejected": rejected}
    messages = {name: [_message("assistant", text)] for name, text in answers.items()}
    return {"prompt": prompt, "asked": asked} | messages


def _recorded(call: AnsweredCall) -> list[Message]:
    return [_message("system", call.system), _message("user", call.prompt)]


def _asked(prompt: str) -> list[Message]:
    return [_message("system", _prompts().system()), _message("user", prompt)]


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


@lru_cache
def _prompts() -> Prompts:
    return Prompts()
