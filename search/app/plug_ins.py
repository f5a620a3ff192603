"""The parts of a search that its config names, which may be the work of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig

from search.engine.faults import PlugIn


def plug_ins_of(config: DictConfig) -> list[PlugIn]:
    """The plug-ins of a search's config, with paths."""
    return [
        PlugIn(kind=kind, name=target.rpartition(".")[2], module=target.rpartition(".")[0])
        for kind, node in _nodes(config)
        if (target := (node or {}).get("_target_"))
    ]


def _nodes(config: DictConfig) -> Iterator[tuple[str, Any]]:
    proposer = config.get("proposer") or {}
    yield "pool", config.get("pool")
    yield "library", config.library.get("kernels")
    yield "strategy", config.get("strategy")
    yield "proposer", proposer
    for each in (proposer.get("models") or {}).values():
        yield "model provider", each
