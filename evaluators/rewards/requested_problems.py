"""The problems that clients of a reward server ask for."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from evaluators.app.command import build, compose_config
from evaluators.app.config import group
from evaluators.base.cause import first_line
from evaluators.base.nearest import near
from evaluators.base.usage_error import UsageError
from evaluators.records.problem import Problem
from evaluators.reference.loading import make_problem

NAME = re.compile(r"[\w-]+(/[\w-]+(\.[\w-]+)*)+")
CHANGES = ("sizes", "dtype", "tolerance", "precision", "libraries", "layout", "inputs", "cases")
"""The keys of a problem that a client may set. It may not set those that accept a reference that cannot
judge, or a kernel that is faster than the machine."""


@dataclass
class RequestedProblemConfig:
    """A config with a problem alone."""

    problem: Any = group(None)


class RequestedProblems:
    """Makes problems for a device. Equal requests get equal problems. Used by one thread at a time."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._composed: dict[str, DictConfig] = {}
        self._one_at_a_time = threading.Lock()

    def named(self, name: str, changes: Mapping[str, Any]) -> Problem:
        """A shipped problem, or one of a collection (`kernelbench/level1/23`). Raises UsageError."""
        _require_known(changes)
        if not NAME.fullmatch(name) or name.endswith(".py"):
            raise UsageError(
                f"problem {name!r} is not a name such as level1/softmax; send the text of your own reference "
                "as `reference`"
            )
        with self._one_at_a_time:
            if name not in self._composed:
                self._composed[name] = compose_config(RequestedProblemConfig, [f"problem={name}"]).problem
            problem: Problem = build(self._composed[name], device=self._device, **changes)
        return problem

    def stated(self, source: str, changes: Mapping[str, Any]) -> Problem:
        """The problem of a reference's text. A `get_cases()` of it runs in this process. Raises
        UsageError."""
        _require_known(changes)
        rules = {"libraries": "no_library", **changes}
        try:
            return make_problem(source, where="it", name="reference", device=self._device, **rules)
        except (ValueError, TypeError) as error:
            raise UsageError(f"the reference is not valid: {first_line(error)}") from error


def _require_known(changes: Mapping[str, Any]) -> None:
    if unknown := next((name for name in changes if name not in CHANGES), None):
        raise UsageError(
            f"problem_keys has {unknown!r}{near(unknown, CHANGES)}; the keys are {', '.join(CHANGES)}"
        )
