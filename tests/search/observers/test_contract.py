"""What every observer must do, whatever it shows: take every run, raise nothing, end when it is told."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from search.observers.console import LiveConsole
from search.observers.plain import PlainConsole
from search.observers.wandb import WandbObserver
from search.protocols import Observer
from search.records.events import Event

Make = Callable[..., Observer]


def live(tmp_path: Path, **options: object) -> Observer:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=30)
    return LiveConsole(console=console, **options)  # type: ignore[arg-type]


def plain(tmp_path: Path, **options: object) -> Observer:
    return PlainConsole(stream=io.StringIO(), **options)  # type: ignore[arg-type]


def wandb_faked(tmp_path: Path, **options: object) -> Observer:
    return WandbObserver(run_dir=tmp_path, mode="offline", **options)  # type: ignore[arg-type]


def wandb_off(tmp_path: Path, **options: object) -> Observer:
    return WandbObserver(run_dir=tmp_path, mode="off", **options)  # type: ignore[arg-type]


@pytest.fixture(params=[live, plain, wandb_faked, wandb_off])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setitem(sys.modules, "wandb", MagicMock(Error=RuntimeError))
    return request.param  # type: ignore[no-any-return]


SCRIPTS = (
    "whole",
    "interrupted",
    "resumed",
    "resumed, its past unknown",
    "killed",
    "stopped before it did anything",
    "nothing correct",
    "no event at all",
    "not confirmed",
    "every event twice",
    "two models",
)


def test_all_scripts_are_played(runs: dict[str, list[Event]]) -> None:
    assert tuple(runs) == SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_takes_every_run(
    make: Make, script: str, runs: dict[str, list[Event]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    observer = make(tmp_path)
    for event in runs[script]:
        observer.on_event(event)
    observer.close()
    observer.close()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_takes_the_past_of_a_resumed_run(make: Make, runs: dict[str, list[Event]], tmp_path: Path) -> None:
    before, after = runs["interrupted"], runs["resumed, its past unknown"]
    observer = make(tmp_path, past=before)
    for event in after:
        observer.on_event(event)
    observer.close()


def test_writes_nothing_to_the_standard_streams(
    make: Make, whole_run: list[Event], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    observer = make(tmp_path)
    for event in whole_run:
        observer.on_event(event)
    observer.close()
    assert tuple(capfd.readouterr()) == ("", "")
