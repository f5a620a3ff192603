"""Rows as conversations: what a search would ask a model, by the prompts' own templates, and the answer. The
columns are those of TRL's conversational formats (huggingface.co/docs/trl/dataset_formats)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from evaluators.records.problem import Problem
from search.harvest.rows import Column, columns
from search.proposers.llm.prompts import Prompts
from search.records.tree import Idea, Outcome, Seed, Variant

Message = dict[str, str]

MESSAGE = columns("string", role="`system`, `user` or `assistant`", content="its text")
PROMPT = Column(name="prompt", type=MESSAGE, meaning="what a search would ask: a system and a user message")
CONVERSATION = (
    Column(name="messages", type=MESSAGE, meaning="prompt and completion, for training on the whole"),
    PROMPT,
    Column(name="completion", type=MESSAGE, meaning="the answer: one message of the assistant"),
)


@dataclass(frozen=True, kw_only=True)
class Brief:
    """What a model is told of an idea that it is to carry out: the kernel to start from (None: the
    reference), the entry of the library that the idea builds on, and the device's `facts`."""

    idea: Idea
    seed: Seed | None
    entry: Seed | None = None
    facts: Mapping[str, str]


def asks_for_code(problem: Problem, brief: Brief) -> list[Message]:
    """The question for a first and only variant of the idea."""
    prompt = _prompts().code(problem, brief.facts, brief.idea, brief.seed, brief.entry, (), 1, 1)
    return _asked(prompt)


def asks_for_repair(problem: Problem, brief: Brief, failed: Variant) -> list[Message]:
    """The question for a variant that failed, mended."""
    return _asked(_prompts().repair(problem, brief.facts, brief.idea, failed))


def asks_for_idea(
    problem: Problem, brief: Brief, history: Sequence[Outcome], entries: Sequence[Seed]
) -> list[Message]:
    """The question for one idea on the brief's seed, of one who knows the history and the library's entries;
    the brief's own idea is left out."""
    return _asked(_prompts().ideas(problem, brief.facts, brief.seed, history, entries, 1))


def conversation(prompt: list[Message], answer: str) -> dict[str, Any]:
    """The columns of `CONVERSATION`."""
    completion = [_message("assistant", answer)]
    return {"messages": [*prompt, *completion], "prompt": prompt, "completion": completion}


def choice(prompt: list[Message], chosen: str, rejected: str) -> dict[str, Any]:
    """The columns `prompt`, `chosen` and `rejected`."""
    answers = {"chosen": chosen, "rejected": rejected}
    return {"prompt": prompt} | {name: [_message("assistant", text)] for name, text in answers.items()}


def _asked(prompt: str) -> list[Message]:
    return [_message("system", _prompts().system()), _message("user", prompt)]


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


@lru_cache
def _prompts() -> Prompts:
    return Prompts()
