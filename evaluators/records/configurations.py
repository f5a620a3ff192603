"""The configurations that a kernel's file declares, from which the evaluator chooses the fastest:

    CONFIGS = {"BLOCK": [64, 128], "STAGES": [2, 3, 4]}
    BLOCK = 64
    STAGES = 2

The file with these default values is a kernel like any other. Filling in a configuration replaces the values
in the assignments and removes `CONFIGS`; the result is a plain kernel, too. The file is parsed but never run.
Pure.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evaluators.base.cause import first_line
from evaluators.base.option import option
from evaluators.records.evaluation import ConfigurationResult, Evaluation
from evaluators.records.problem import Kernel

DECLARATION = "CONFIGS"
FORM = f'{DECLARATION} = {{"BLOCK": [64, 128], ...}}'
MOST_CHARACTERS = 64
"""The longest value that is a string."""
LARGEST = 2**63

Value = bool | int | float | str


class InvalidConfigurations(ValueError):
    """A kernel's declaration cannot be used; the message says why in one line."""


@dataclass(frozen=True, kw_only=True)
class ConfigurationLimits:
    """How far a kernel's configurations are searched."""

    most: int = option(
        32,
        "most configurations (combinations of declared values) of a kernel; 1: judge the default values only",
    )
    seconds: float = option(
        30.0,
        "device time for comparing the configurations of a kernel, in s; no further session begins after it",
    )

    def __post_init__(self) -> None:
        for name in ("most", "seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"evaluator.configs.{name} is {getattr(self, name):g}; it must be positive")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One choice of values, and the plain kernel that has them."""

    values: Mapping[str, Value]
    kernel: Kernel


@dataclass(frozen=True, kw_only=True)
class _Declaration:
    """Where a source declares its configurations, and which. `defaults` are the literals in the assignments
    of the constants, by name."""

    statement: ast.stmt
    space: Mapping[str, Sequence[Value]]
    defaults: Mapping[str, ast.expr]


def configurations(kernel: Kernel, most: int) -> list[Configuration]:
    """The configurations that a kernel declares, its default one first; none if it declares none or only the
    default one is wanted.

    Args:
        kernel: the kernel, which is not run.
        most: the largest number of configurations; 1 stands for the kernel with its default values, which is
            a kernel like any other.

    Raises:
        InvalidConfigurations: If the declaration cannot be used, or has more than `most` combinations.
    """
    found = _declaration(kernel.source)
    if found is None or most == 1:
        return []
    count = math.prod(len(values) for values in found.space.values())
    if count > most:
        limit = f"evaluator.configs.most={most} is the limit; declare fewer values"
        raise InvalidConfigurations(f"{DECLARATION} has {count:,} combinations; {limit}")
    default = {name: ast.literal_eval(each) for name, each in found.defaults.items()}
    choices = [dict(zip(found.space, each, strict=True)) for each in itertools.product(*found.space.values())]
    choices.sort(key=lambda values: values != default)
    return [Configuration(values=values, kernel=_filled_in(kernel, found, values)) for values in choices]


def declares_configurations(kernel: Kernel) -> bool:
    """Whether a kernel declares configurations, be they usable or not."""
    try:
        return _declaration(kernel.source) is not None
    except InvalidConfigurations:
        return True


def judged_kernel(kernel: Kernel, evaluation: Evaluation) -> Kernel:
    """The kernel that a verdict is about: with the chosen configuration filled in, if there is one."""
    chosen = next((each for each in evaluation.configurations if each.chosen), None)
    found = _declaration(kernel.source) if chosen else None
    return _filled_in(kernel, found, chosen.values) if chosen and found else kernel


def configuration_lines(results: Sequence[ConfigurationResult]) -> list[str]:
    """A table with one line per configuration."""
    width = max((len(each.name) for each in results), default=0)
    return [f"{each.name:<{width}}  {_result(each)}" for each in results]


def configuration_summary(results: Sequence[ConfigurationResult]) -> str:
    """The best configuration, how much slower the others are, and how many were excluded; "" if none was
    chosen."""
    chosen = next((each for each in results if each.chosen), None)
    if chosen is None:
        return ""
    text = f"{chosen.name} is the best of {len(results)} configurations"
    times = [each.timing.kernel_ms for each in results if each.timing and not each.cause]
    if chosen.timing and len(times) > 1:
        text += f", which take {min(times):#.3g} to {max(times):#.3g} ms"
    if excluded := [each for each in results if each.cause]:
        text += f"; {len(excluded)} excluded: {excluded[0].name} ({excluded[0].cause})"
    return text


def _result(each: ConfigurationResult) -> str:
    words = [each.cause] if each.cause else []
    if (timing := each.timing) is not None:
        interval = f"[{timing.speedup_low:.2f}, {timing.speedup_high:.2f}]"
        words.insert(0, f"{timing.kernel_ms:#.3g} ms, {timing.speedup:.2f}x {interval} against eager")
    if each.chosen:
        words.append("chosen")
    return "; ".join(words)


def _declaration(source: str) -> _Declaration | None:
    """The declaration in a source: one assignment of a dictionary, which nothing else in the file reads. Any
    other use of the name is the kernel's own. Raises InvalidConfigurations."""
    if DECLARATION not in source:
        return None
    try:
        body = (tree := ast.parse(source)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the build says what is wrong
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == DECLARATION]
    found = [(each, value) for each in body if (value := _assigned(each, DECLARATION)) is not None]
    if len(uses) != 1 or not found or not isinstance(found[0][1], ast.Dict):
        return None
    statement, value = found[0]
    space = _space(value)
    first, last = _lines(statement)
    others = [_lines(each) for each in body if each is not statement]
    if any(start <= last and first <= end for start, end in others):
        raise InvalidConfigurations(f"{DECLARATION} must not share its lines with another statement")
    return _Declaration(
        statement=statement, space=space, defaults={name: _default(body, name) for name in space}
    )


def _lines(statement: ast.stmt) -> tuple[int, int]:
    """The first and the last line of a statement."""
    return statement.lineno, statement.end_lineno or statement.lineno


def _assigned(statement: ast.stmt, name: str) -> ast.expr | None:
    """The value that a statement assigns to the name, and to nothing else; None if it does not."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
            return value
        case ast.AnnAssign(target=ast.Name(id=target), value=value) if target == name:
            return value
    return None


def _space(declared: ast.expr) -> dict[str, list[Value]]:
    """The values of each constant, each once. Raises InvalidConfigurations."""
    try:
        space = ast.literal_eval(declared)
        repr(space)  # a hexadecimal number may be too long for it
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        why = first_line(error)
        raise InvalidConfigurations(f"{DECLARATION} must be a literal, as in {FORM}: {why}") from error
    if not space:
        raise InvalidConfigurations(f"{DECLARATION} names no constant; write it as in {FORM}")
    for name, values in space.items():
        if not isinstance(name, str) or not isinstance(values, list | tuple) or not values:
            entry = f"{name!r:.40}: {values!r:.40}"
            raise InvalidConfigurations(f"{DECLARATION} has {entry}; give each name a list, as in {FORM}")
        if wrong := [value for value in values if not _is_plain(value)]:
            kinds = f"a finite number, a boolean or a string of at most {MOST_CHARACTERS} characters"
            raise InvalidConfigurations(f"{DECLARATION} has {wrong[0]!r:.40} for {name}; use {kinds}")
    return {name: list({repr(each): each for each in values}.values()) for name, values in space.items()}


def _is_plain(value: object) -> bool:
    """Whether the value is one of `Value` whose literal is short."""
    if isinstance(value, str):
        return len(value) <= MOST_CHARACTERS and value.isprintable()
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and abs(value) < LARGEST


def _default(body: Sequence[ast.stmt], name: str) -> ast.expr:
    """The literal that the file assigns to the constant. Raises InvalidConfigurations."""
    found = [value for each in body if (value := _assigned(each, name)) is not None]
    try:
        if len(found) == 1 and _is_plain(ast.literal_eval(found[0])):
            return found[0]
    except (ValueError, TypeError, RecursionError, MemoryError):
        pass
    need = f"one assignment of a default value at the top level of the file, such as {name} = 64"
    raise InvalidConfigurations(f"{DECLARATION} has {name!r:.40}, which needs {need}")


def _filled_in(kernel: Kernel, found: _Declaration, values: Mapping[str, Value]) -> Kernel:
    """The kernel with these values in the assignments, without the declaration."""
    lines = kernel.source.encode().splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    source = b"".join(lines)
    first, last = _lines(found.statement)
    edits = [(starts[first - 1], starts[last], b"")]
    for name, value in values.items():
        at = found.defaults[name]
        end = starts[(at.end_lineno or at.lineno) - 1] + (at.end_col_offset or 0)
        edits.append((starts[at.lineno - 1] + at.col_offset, end, repr(value).encode()))
    for start, end, text in sorted(edits, reverse=True):
        source = source[:start] + text + source[end:]
    return replace(kernel, source=source.decode())
