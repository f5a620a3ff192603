"""How a setting says what it is for, beside its type and its default."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, text: str) -> Any:
    """A dataclass's field: its default, and what `--help` says of it."""
    if isinstance(default, list | dict):
        return field(default_factory=lambda: default, metadata={"help": text})
    return field(default=default, metadata={"help": text})
