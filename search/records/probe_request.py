"""A language model's request for a probe. It is no idea and its kernel is no variant, so that neither enters
the tree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from evaluators.records.problem import content_id


@dataclass(frozen=True, kw_only=True)
class ProbeRequest:
    """An experiment: a kernel that is only built and timed, to learn what limits another one.

    Attributes:
        question: What the model wants to know.
        what: What the kernel leaves out or records.
        base: The id of the kernel that it changes, "" for the reference.
        round: The round in which the model asked for it, from 1.
        model: The language model that asked.
    """

    question: str
    what: str
    base: str
    round: int
    model: str = ""

    @cached_property
    def id(self) -> str:
        """Derived from the content and the round."""
        return content_id("probe", self.question, self.what, self.base, str(self.round))
