"""Overrides of a command, as `key=value` strings."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig


def key_of(override: str) -> str:
    """The outermost key of an override, e.g. `budget` of `budget.calls=3`."""
    return override.partition("=")[0].split(".")[0]


def without(overrides: Sequence[str], *keys: str) -> list[str]:
    """The overrides that change neither these keys nor any key below them."""
    paths = [each.partition("=")[0] for each in overrides]
    return [
        each
        for each, path in zip(overrides, paths, strict=True)
        if not any(path == key or path.startswith(f"{key}.") for key in keys)
    ]


def arms_of(config: DictConfig) -> dict[str, tuple[str, ...]]:
    """The overrides of each of the config's `arms`, by name."""
    return {
        str(name): (overrides,) if isinstance(overrides, str) else tuple(map(str, overrides))
        for name, overrides in config.arms.items()
    }
