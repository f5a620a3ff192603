"""A setting's help, stored with its type and its default."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, text: str) -> Any:
    """A dataclass field with a default and the text that `--help` prints for it."""
    if isinstance(default, list | dict):
        return field(default_factory=lambda: default, metadata={"help": text})
    return field(default=default, metadata={"help": text})
