"""One kernel of the library, with what is known of it: a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from evaluators.evaluation import Evaluation, Status
from evaluators.problem import Kernel, content_id


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A kernel that was right and measured twice. `problem` and `problem_id` are the name and the content
    hash of what it computes; `idea` is the idea that it came from.

    Raises ValueError for an evaluation that is not correct: the library holds nothing else.
    """

    problem: str
    problem_id: str
    kernel: Kernel
    evaluation: Evaluation
    idea: str = ""

    def __post_init__(self) -> None:
        if self.evaluation.status is not Status.CORRECT:
            raise ValueError(f"an entry needs a correct evaluation, not {self.evaluation.status.value}")

    @property
    def id(self) -> str:
        """Content hash: one kernel for one problem is one entry."""
        return content_id("entry", self.problem_id, self.kernel.id)

    def card(self) -> dict[str, Any]:
        """Everything but the source, in plain JSON types."""
        card = asdict(self) | {"evaluation": self.evaluation.to_json(), "language": self.kernel.language}
        del card["kernel"]
        return card

    @classmethod
    def from_card(cls, card: Mapping[str, Any], source: str) -> Entry:
        """The inverse of `card`. Raises KeyError, TypeError or ValueError for anything else."""
        fields = dict(card)
        kernel = Kernel(source=source, language=fields.pop("language"))
        evaluation = Evaluation.from_json(fields.pop("evaluation"))
        return cls(kernel=kernel, evaluation=evaluation, **fields)
