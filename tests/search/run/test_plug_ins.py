"""Plug-ins of users in a config folder: what the command says when one of them fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from search.run import __main__ as run
from tests.evaluators.scheduler.fake_host import FakeHost

PARTS = """
from evaluators.records.problem import Kernel
from search.records.tree import Category, Expansion, Idea
from tests.search.fakes import FakeProposer

def trip():
    a, b = [1]

class Asking:
    ideas, synchronous = 1, True
    def ask(self, view, rng):
        trip()

class Starting:
    ideas, synchronous = 1, True
    def __init__(self):
        trip()

class Refusing(Starting):
    def __init__(self):
        raise ValueError("width is 0; it must be 1 or more")

class Missing(Starting):
    def __init__(self):
        self.what.is_not_there

class Unfit(FakeProposer):
    def refusal(self, problem):
        trip()

class Host:
    def __init__(self, **settings):
        trip()

class Provider:
    name = "mine"
    def __init__(self):
        from search.records.model_calls import Limits, Price
        self.price, self.limits = Price(input=0, output=0), Limits()
    def refusal(self): return None
    def begin(self, folder): pass
    async def close(self): pass
    async def complete(self, question):
        trip()
"""
SMALL = (
    "problem=level1/softmax",
    "problem.sizes.batch=4",
    "device=cpu",
    "pool=local",
    "wandb=off",
    "rounds=1",
)
UNPACKED = "ValueError: not enough values to unpack (expected 2, got 1)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("evaluators.scheduler.local_host.LocalHost", lambda **_: FakeHost())
    (tmp_path / "my_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    for group, name, target in (
        *(("strategy", each.lower(), each) for each in ("Asking", "Starting", "Refusing", "Missing")),
        ("proposer", "unfit", "Unfit"),
        ("pool", "tripping", "Host"),
        ("llm", "mine", "Provider"),
    ):
        place = tmp_path / "configs" / group
        place.mkdir(parents=True, exist_ok=True)
        head = "# @package llm.mine\n" if group == "llm" else ""
        partial = "_partial_: true\n" if group == "pool" else ""
        (place / f"{name}.yaml").write_text(f"{head}_target_: my_parts.{target}\n{partial}")
    return tmp_path


def call(folder: Path, *arguments: str) -> int:
    return run.main(
        [*SMALL, *arguments, "--config-dir", str(folder / "configs"), f"out={folder / 'outputs'}"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "name"),
    [
        (["strategy=asking"], "strategy Asking (my_parts)"),
        (["proposer=llm", "llm=mine"], "model provider Provider (my_parts)"),
    ],
)
def test_a_search_that_a_plug_in_ends_has_status_1_and_a_line(
    folder: Path,
    choice: list[str],
    name: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert call(folder, *choice) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert f"{name}: {UNPACKED}" in said
    assert "Traceback" in caplog.text
    assert list((folder / "outputs").rglob("summary.json"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "note"),
    [
        ("strategy=starting", "strategy Starting (my_parts) failed"),
        ("strategy=missing", "strategy Missing (my_parts) failed"),
        ("proposer=unfit", "proposer Unfit (my_parts) failed"),
        ("pool=tripping", "pool Host (my_parts) failed"),
    ],
)
def test_a_fault_before_the_start_is_a_traceback_with_a_line(folder: Path, choice: str, note: str) -> None:
    with pytest.raises((ValueError, AttributeError)) as failed:
        call(folder, choice)
    assert failed.value.__notes__[-1] == note


@pytest.mark.slow
def test_a_value_that_a_plug_in_refuses_is_a_wrong_call(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(folder, "strategy=refusing") == 2
    assert capsys.readouterr().err == "search.run: width is 0; it must be 1 or more\n"
