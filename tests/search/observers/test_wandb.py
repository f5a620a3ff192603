from __future__ import annotations

import logging
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from search.observers.wandb import IDEAS, VARIANTS, WandbObserver
from search.records.events import ASSUMED, Event
from tests.search.observers.conftest import call, start


class FakeError(Exception):
    pass


class FakeArtifact:
    def __init__(self, name: str, type: str, metadata: dict[str, Any]) -> None:
        self.name, self.type, self.metadata = name, type, metadata
        self.files: dict[str, str] = {}

    def add_file(self, path: str, *, name: str, policy: str, skip_cache: bool) -> None:
        self.files[name] = Path(path).read_text()


class FakeConfig(dict[str, Any]):
    def update(self, values: dict[str, Any], *, allow_val_change: bool) -> None:  # type: ignore[override]
        assert allow_val_change
        super().update(values)


class FakeWandb:
    """Records what it is told; the parts of W&B's interface that the observer uses."""

    Error = FakeError
    Artifact = FakeArtifact

    def __init__(self, *, key: bool = False, env_mode: str = "online", unreachable: bool = False) -> None:
        self.key, self.env_mode, self.unreachable = key, env_mode, unreachable
        self.inits: list[dict[str, Any]] = []
        self.logged: list[tuple[int | None, dict[str, Any]]] = []
        self.artifacts: list[FakeArtifact] = []
        self.finished: list[int] = []
        self.summary: dict[str, Any] = {}
        self.url = "https://wandb.example/run"
        self.dir = ""
        self.saved: dict[str, str] = {}
        self.config = FakeConfig()
        self.defined: dict[str, str] = {}
        self.fail_at_log: int | None = None

    def Settings(self, **settings: object) -> dict[str, object]:  # noqa: N802
        return settings

    def Table(self, columns: list[str], data: list[list[Any]]) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(columns=columns, data=data)

    def setup(self, settings: object) -> SimpleNamespace:
        return SimpleNamespace(settings=SimpleNamespace(mode=self.env_mode))

    def login(self, *, prompt: bool, verify: bool) -> bool:
        assert not prompt
        assert not verify
        return self.key

    def init(self, **arguments: Any) -> FakeWandb:
        if arguments["mode"] == "online" and self.unreachable:
            raise FakeError("no route\nto host")
        self.inits.append(arguments)
        return self

    def define_metric(self, name: str, *, step_metric: str) -> None:
        self.defined[name] = step_metric

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        if len(self.logged) == self.fail_at_log:
            raise OSError("the service is gone")
        self.logged.append((step, data))

    def save(self, path: str, *, base_path: str, policy: str) -> None:
        assert base_path == self.dir
        self.saved[path] = Path(path).read_text()

    def log_artifact(self, artifact: FakeArtifact) -> None:
        self.artifacts.append(artifact)

    def finish(self, exit_code: int) -> None:
        self.finished.append(exit_code)


def play(
    fake: FakeWandb | None,
    events: list[Event],
    monkeypatch: pytest.MonkeyPatch,
    run_dir: Path,
    **options: Any,
) -> WandbObserver:
    monkeypatch.setitem(sys.modules, "wandb", fake)
    observer = WandbObserver(run_dir=run_dir, **options)
    for event in events:
        observer.on_event(event)
    observer.close()
    return observer


def test_the_config_follows_the_device_that_a_worker_has_described(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeWandb()
    assumed = replace(start(), environment={"device": "NVIDIA H200", ASSUMED: "no worker yet"})
    play(fake, [assumed, start(at_s=9.0)], monkeypatch, tmp_path, mode="offline", config={})
    (init,) = fake.inits
    assert ASSUMED in init["config"]["run"]["environment"]
    assert fake.config["run"]["environment"] == start().environment


def test_logs_rounds_ideas_winner_and_config(
    whole_run: list[Event], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeWandb()
    play(fake, whole_run, monkeypatch, tmp_path, mode="offline", config={"branch": 6}, tags=("a",))

    (init,) = fake.inits
    assert init["mode"] == "offline"
    assert init["dir"] == str(tmp_path)
    assert init["config"]["branch"] == 6
    assert init["config"]["run"]["problem"] == "level1/conv2d"
    assert init["config"]["run"]["environment"]["device"] == "NVIDIA H200"
    assert init["settings"]["silent"] is True
    assert init["settings"]["console"] == "off"

    one, two = rounds(fake)
    assert one["best_ms"] == 1.0
    assert two["best_speedup"] == 4.0
    assert two["best_speedup_low"] == pytest.approx(3.92)
    assert two["best_speedup_high"] == pytest.approx(4.08)
    assert two["correct_share"] == pytest.approx(2 / 6)
    assert (two["evaluations"], two["evaluations_so_far"]) == (5, 9)
    assert (two["wall_s"], two["elapsed_s"]) == (10.0, 20.0)
    assert (two["gpu_s"], two["gpu_s_so_far"]) == (6.0, one["gpu_s"] + 6.0)
    assert two["statuses/timeout"] == 1
    assert two["statuses/compile_error"] == 0
    assert len(two["round_ideas"].data) == 1

    ideas, variants = tables(fake)
    memory, latency, fp16 = ideas
    assert (memory["variants"], memory["correct"]) == (2, 1)
    assert (latency["best"], latency["kernel_ms"], latency["speedup"]) == ("", None, None)
    assert (fp16["parent"], fp16["parent_idea"], fp16["depth"]) == (memory["best"], memory["id"], 2)
    assert fp16["lineage"] == f"{memory['id']} > {fp16['id']}"
    assert fp16["text"] == "Use the tensor cores"
    assert fp16["category"] == "data type and precision"
    assert (fp16["round"], fp16["kernel_ms"], fp16["speedup"], fp16["gain"]) == (2, 0.5, 4.0, 2.0)
    assert len(variants) == 10
    (best,) = [each for each in variants if each["id"] == fp16["best"]]
    assert (best["lineage"], best["status"]) == (f"{memory['best']} > {fp16['best']}", "correct")
    assert {each["cause"] for each in variants if each["status"] == "crashed"} == {"Segmentation fault"}

    (artifact,) = fake.artifacts
    assert (artifact.name, artifact.type) == ("best-level1-conv2d", "kernel")
    assert artifact.files == {"best.py": "class ModelNew: ...  # fastest\n"}
    assert artifact.metadata["confirmed_speedup"] == 3.9
    assert artifact.metadata["variant"] == best
    assert artifact.metadata["ideas"] == [memory["text"], fp16["text"]]
    assert fake.summary["confirmed_speedup"] == 3.9
    assert fake.summary["statuses"]["correct"] == 2
    assert fake.finished == [0]


def rounds(fake: FakeWandb) -> list[dict[str, Any]]:
    """What was logged when a round closed."""
    return [row for _, row in fake.logged if "round" in row]


def tables(fake: FakeWandb) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The ideas and variants that were logged at the end."""
    end = fake.logged[-1][1]
    assert tuple(end["ideas"].columns) == IDEAS
    assert tuple(end["variants"].columns) == VARIANTS
    ideas, variants = (
        [dict(zip(table.columns, row, strict=True)) for row in table.data]
        for table in (end["ideas"], end["variants"])
    )
    return ideas, variants


def test_the_trajectory_has_the_best_after_each_evaluation(
    whole_run: list[Event], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeWandb()
    play(fake, whole_run, monkeypatch, tmp_path, mode="offline")
    points = [(step, row["evaluations_so_far"], row.get("best_ms")) for step, row in fake.logged[:-1]]
    assert all(step == evaluations for step, evaluations, _ in points)
    assert [best_ms for *_, best_ms in points] == [1.0] * 7 + [0.5] * 4
    assert [step for step, *_ in points] == [1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 9], "the rounds close at 4 and 9"
    assert fake.defined["best_*"] == "evaluations_so_far"


def test_the_report_is_a_file_of_the_run(
    whole_run: list[Event], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeWandb()
    fake.dir = str(tmp_path / "files")
    (tmp_path / "files").mkdir()
    (tmp_path / "report.html").write_text("<p>the report</p>")
    play(fake, whole_run, monkeypatch, tmp_path, mode="offline")
    assert fake.saved == {str(tmp_path / "files" / "report.html"): "<p>the report</p>"}


def test_logs_what_models_did_and_cost(
    runs: dict[str, list[Event]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeWandb()
    play(fake, runs["two models"], monkeypatch, tmp_path, mode="offline")
    (one,) = rounds(fake)
    figures = ("calls", "failed_calls", "estimated_calls", "tokens", "dollars")
    so_far = {name: one[f"{name}_so_far"] for name in figures}
    assert so_far == {"calls": 7, "failed_calls": 3, "estimated_calls": 0, "tokens": 41_200, "dollars": 0.5}
    gpt = dict(zip(figures, (4, 1, 0, 33_200, 0.5), strict=True)) | {"ideas": 1, "best_speedup": 3.0}
    gemini = dict(zip(figures, (3, 2, 0, 8000, 0), strict=True)) | {"ideas": 1, "best_speedup": 1.5}
    assert {name: one[f"models/openai/gpt-6/{name}"] for name in gpt} == gpt
    assert fake.summary["models"] == {"openai/gpt-6": gpt, "google/gemini-4-pro": gemini}
    assert fake.summary["failures"] == {"rate limited": 2, "malformed answer": 1}
    assert {name: fake.summary[name] for name in so_far} == so_far
    ideas, variants = tables(fake)
    assert [(row["model"], row["speedup"]) for row in ideas] == [
        ("openai/gpt-6", 3.0),
        ("google/gemini-4-pro", 1.5),
    ]
    repairs = {each["id"]: each["repairs"] for each in variants}
    assert repairs[ideas[0]["best"]] == fake.summary["best_repairs"] != ideas[0]["best"]
    assert repairs[ideas[1]["best"]] == ""
    costs = [row["dollars_so_far"] for _, row in fake.logged[:-1]]
    assert costs == [0.375, 0.5, 0.5, 0.5, 0.5], "before the last two calls, then with them"


def test_nothing_of_models_where_there_is_none(
    whole_run: list[Event], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeWandb()
    play(fake, whole_run, monkeypatch, tmp_path, mode="offline")
    logged = [name for _, data in fake.logged for name in data] + list(fake.summary)
    assert not [name for name in logged if re.search("model|call|token|dollar|fail|repair", name)]
    assert {row["model"] for table in tables(fake) for row in table} == {""}


def test_a_resumed_run_has_the_models_of_each_round(
    runs: dict[str, list[Event]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake, events = FakeWandb(), runs["two models"]
    later = [replace(events[0], at_s=21.0), call(22.0, 8, "openai/gpt-6", 1000)]
    play(fake, later, monkeypatch, tmp_path, mode="offline", past=events)
    assert rounds(fake)[0]["calls_so_far"] == 7
    assert fake.summary["calls"] == 8


def test_a_run_that_was_killed_still_has_its_table(
    runs: dict[str, list[Event]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeWandb()
    play(fake, runs["killed"], monkeypatch, tmp_path, mode="offline")
    assert len(fake.logged[-1][1]["ideas"].data) == 3
    assert fake.summary["reason"] == "stopped"
    assert fake.finished == [1]


def test_a_resumed_run_has_all_rounds_and_the_same_id(
    runs: dict[str, list[Event]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = FakeWandb(), FakeWandb()
    play(first, runs["interrupted"], monkeypatch, tmp_path, mode="offline")
    rest = runs["resumed, its past unknown"]
    play(second, rest, monkeypatch, tmp_path, mode="offline", past=runs["interrupted"])
    assert first.inits[0]["id"] == second.inits[0]["id"]
    assert [row["round"] for row in rounds(second)] == [1, 2]
    assert [step for step, _ in second.logged] == [1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 9, None]
    assert len(second.logged[-1][1]["ideas"].data) == 3


@pytest.mark.parametrize(
    ("mode", "key", "env_mode", "chosen"),
    [
        ("auto", True, "online", "online"),
        ("auto", False, "online", "offline"),
        ("auto", True, "disabled", "disabled"),
        ("online", True, "online", "online"),
        ("online", False, "online", "offline"),
        ("offline", True, "online", "offline"),
    ],
)
def test_modes(
    mode: str,
    key: bool,
    env_mode: str,
    chosen: str,
    whole_run: list[Event],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    fake = FakeWandb(key=key, env_mode=env_mode)
    play(fake, whole_run[:1], monkeypatch, tmp_path, mode=mode)
    assert [init["mode"] for init in fake.inits] == [chosen]


@pytest.mark.parametrize("mode", ["off", False])
def test_off_does_not_import_wandb(
    mode: str | bool, whole_run: list[Event], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeWandb()
    play(fake, whole_run, monkeypatch, tmp_path, mode=mode)
    assert not fake.inits
    assert not list(tmp_path.iterdir())


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be one of auto, online, offline, off"):
        WandbObserver(run_dir=tmp_path, mode="on")


def test_a_missing_package_is_named_once(
    whole_run: list[Event],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    play(None, whole_run, monkeypatch, tmp_path)
    assert len(caplog.records) == 1
    assert "pip install 'wandb" in caplog.text


def test_an_unreachable_server_means_offline(
    whole_run: list[Event],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = FakeWandb(key=True, unreachable=True)
    play(fake, whole_run, monkeypatch, tmp_path)
    assert [init["mode"] for init in fake.inits] == ["offline"]
    assert len(caplog.records) == 1
    assert "no route to host" in caplog.text
    assert fake.finished == [0]


@pytest.mark.parametrize("fail_at_log", [0, 1, 2])
def test_a_failure_is_one_warning(
    fail_at_log: int,
    whole_run: list[Event],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = FakeWandb()
    fake.fail_at_log = fail_at_log
    with caplog.at_level(logging.WARNING):
        play(fake, whole_run, monkeypatch, tmp_path, mode="offline")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the service is gone" in caplog.text
