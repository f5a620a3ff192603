"""Cheats and honest kernels, one small file each, with what the evaluator has to say of them.

A fixture is the complete source of a kernel. Its docstring says what it tries and what it hopes for; the
comments below are read by `fixtures`:

    # problem: tanhs          a name in `problems.py`
    # device: any             any, cpu or cuda
    # verdict: rejected       one word, or several joined by | where more than one is right
    # rule: forged message    optional: which rule a rejected one has broken
    # defence: the clock      what stops it, in one phrase

A verdict is a status, or `no_gain`: correct, but hardly faster than eager. That is right only for a cheat
with honest outputs, of which a defence may leave nothing instead of noticing it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from evaluators.records.evaluation import Evaluation, Status

ROOT = Path(__file__).parent
GROUPS = (
    "stealing_the_answer",
    "weak_oracle",
    "no_kernel",
    "reuse",
    "timing",
    "attacking_the_harness",
    "not_stopped",
    "honest",
)
DEVICES = {"any": ("cpu", "cuda"), "cpu": ("cpu",), "cuda": ("cuda",)}
NO_GAIN = "no_gain"
NO_GAIN_SPEEDUP = 1.15
"""The low end of the interval, above which a speedup counts as one: honest copies on a busy CPU are below."""


@dataclass(frozen=True, kw_only=True)
class Fixture:
    """One file of the catalogue."""

    group: str
    name: str
    source: str
    says: str
    problem: str
    devices: tuple[str, ...]
    verdicts: tuple[str, ...]
    rule: str
    defence: str

    @property
    def id(self) -> str:
        return f"{self.group}/{self.name}"

    def complaint(self, found: Evaluation) -> str:
        """What is wrong with a verdict on this kernel; "" where it is the right one."""
        if found.status.value in self.verdicts:
            wrong_rule = found.status is Status.REJECTED and self.rule not in ("", found.rule)
            return f"rejected for {found.rule!r}, not for {self.rule!r}" if wrong_rule else ""
        if NO_GAIN in self.verdicts and found.timing and found.timing.speedup_low < NO_GAIN_SPEEDUP:
            return ""
        seen = f"{found.status.value} {found.rule}, speedup {found.speedup:.3g}"
        return f"{seen} instead of {'|'.join(self.verdicts)}: {found.log}"


def fixtures() -> list[Fixture]:
    """All files of the catalogue, by group and name. Raises ValueError for one with bad headers."""
    return [read(path) for group in GROUPS for path in sorted((ROOT / group).glob("*.py"))]


def read(path: Path) -> Fixture:
    """One file. Raises ValueError, with its name, when a header is missing, unknown or has a bad value."""
    source = path.read_text()
    try:
        headers = dict(re.findall(r"^# (\w+): (.+)$", _above_the_code(source), re.MULTILINE))
        verdicts = tuple(headers.pop("verdict").split("|"))
        fixture = Fixture(
            group=path.parent.name,
            name=path.stem,
            source=source,
            says=" ".join((ast.get_docstring(ast.parse(source)) or "").split()),
            problem=headers.pop("problem"),
            devices=DEVICES[headers.pop("device")],
            verdicts=verdicts,
            rule=headers.pop("rule", ""),
            defence=headers.pop("defence"),
        )
    except (KeyError, SyntaxError) as error:
        raise ValueError(f"{path}: {error!r}") from error
    if headers or not fixture.says or not set(verdicts) <= {*Status, NO_GAIN}:
        raise ValueError(f"{path}: it lacks a docstring, or has an unknown header or verdict: {headers}")
    return fixture


def _above_the_code(source: str) -> str:
    """The docstring and the comments after it: up to the first statement."""
    statements = ast.parse(source).body
    return "\n".join(source.splitlines()[statements[0].end_lineno or 0 : statements[1].lineno - 1])
