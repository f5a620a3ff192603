from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from search.observers.console import LiveConsole, console_observer
from search.observers.live_view import closing_view, live_view, round_line
from search.observers.plain import PlainConsole
from search.observers.run_progress import Progress
from search.records.events import (
    Event,
    IdeaProposed,
    RoundClosed,
    VariantEvaluated,
    VariantStage,
    VariantWritten,
)
from search.records.model_calls import Cause
from tests.search.observers.conftest import call

WIDTHS = (80, 140)


def screen(width: int, height: int = 24) -> Console:
    return Console(file=io.StringIO(), record=True, force_terminal=True, width=width, height=height)


def text_of(console: Console, view: RenderableType) -> str:
    console.print(view)
    return console.export_text()


def after(events: list[Event], **options: object) -> Progress:
    progress = Progress(clock=lambda: 0.0, **options)  # type: ignore[arg-type]
    for event in events:
        progress.apply(event)
    return progress


def until(events: list[Event], at_s: float) -> list[Event]:
    return [event for event in events if event.at_s <= at_s]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_view_in_the_middle_of_a_round(width: int, whole_run: list[Event]) -> None:
    progress = after(until(whole_run, 15.0), evaluations=20, seconds=3600.0)
    text = text_of(screen(width), live_view(progress, screen(width), frame=0))
    for part in ("level1/conv2d", "NVIDIA H200", "playbook/idea_branching", "round 2 of 2"):
        assert part in text
    assert ("6 of 20 evaluations" if width == 140 else "6/20 evals") in text
    assert "59m45s budget left" in text
    assert "dtype" in text
    assert "Use the tensor cores" in text
    # fastest is queued, first reused, slow timed out, killed crashed, two more are queued
    assert re.search(r"· queued +✓ 2\.00x= +∞ time +† crash +· queued +· queued", text)
    assert "★ 1.00 ms  2.00x [1.96, 2.04]" in text
    assert "⊘ 1 " in text
    assert "· 3 queued" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_stages_show_as_they_go(width: int, whole_run: list[Event]) -> None:
    progress = after(until(whole_run, 12.0))
    ids = [event.variant.id for event in whole_run if isinstance(event, VariantWritten)][4:]
    for id, stage in zip(ids, ("building", "evaluating", "measuring", "queued", "new_stage"), strict=False):
        progress.apply(VariantStage(at_s=12.5, variant_id=id, stage=stage))
    text = text_of(screen(width), live_view(progress, screen(width), frame=0))
    assert re.search(r"⠋ build +⠋ runs +⠋ start +· queued +⠋ new_st", text)


def test_an_idea_without_variants_is_being_written(whole_run: list[Event]) -> None:
    assert "✎ write" in text_of(screen(80), live_view(after(until(whole_run, 1.0)), screen(80), frame=0))


def test_between_rounds_and_while_confirming(whole_run: list[Event]) -> None:
    progress = after(until(whole_run, 10.0))
    assert "proposing ideas for round 2" in text_of(screen(80), live_view(progress, screen(80), frame=0))
    progress = after(until(whole_run, 20.0))
    assert "measuring the winner again" in text_of(screen(80), live_view(progress, screen(80), frame=0))


LIMITS: dict[str, object] = {"calls": 100, "tokens": 1_000_000, "dollars": 5.0}


@pytest.mark.parametrize("width", WIDTHS)
def test_what_models_are_doing(width: int, runs: dict[str, list[Event]]) -> None:
    progress = after(until(runs["two models"], 9.0), **LIMITS)
    text = text_of(screen(width), live_view(progress, screen(width), frame=0))
    of = " of " if width == 140 else "/"
    assert f"7{of}100 calls, 3 failed · 41.2k{of}1.00M tokens · $0.50{of}$5.00\n" in text
    assert "model: openai/gpt-6 malformed answer (attempt 1): no ModelNew\n" in text
    assert re.search(r"memory +gpt-6 · Load with 128 bits", text)
    assert re.search(r"latency +gemini-4-pro · Prefetch the filter", text)
    # broken, its repair, and one that is being written
    assert "✗ build  ·↻queued ✎ write" in text
    assert "↻ 1 repair  · 2 queued  ✎ 1 writing\n" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_of_models_where_none_is_called(width: int, whole_run: list[Event]) -> None:
    progress, console = after(until(whole_run, 15.0), **LIMITS), screen(width)
    text = text_of(console, live_view(progress, console, frame=0))
    text += text_of(console, closing_view(after(whole_run, **LIMITS), console))
    assert not [word for word in ("call", "token", "$", "repair", "cost", "model:") if word in text]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_single_model_is_not_named_with_its_ideas(width: int, runs: dict[str, list[Event]]) -> None:
    events = [event for event in until(runs["two models"], 20.0) if "gemini" not in repr(event)]
    progress, console = after(events), screen(width)
    console.print(round_line(progress, progress.rounds[1], console))
    text = text_of(console, live_view(after(until(events, 7.0)), console, frame=0))
    assert "gpt-6" not in text
    assert "Load with 128 bits" in text
    assert "model " not in text_of(console, closing_view(progress, console))


@pytest.mark.parametrize("width", WIDTHS)
def test_what_models_did_is_summed_up(width: int, runs: dict[str, list[Event]]) -> None:
    progress, console = after(runs["two models"]), screen(width)
    console.print(round_line(progress, progress.rounds[1], console), no_wrap=True, overflow="ellipsis")
    assert "gpt-6 · Load with" in console.export_text()
    flat = " ".join(text_of(console, closing_view(progress, console)).split())
    for part in (
        "cuda (repairs ",
        "memory access, openai/gpt-6: Load with 128 bits",
        "cost 7 calls, 3 failed (rate limited 2, malformed answer 1); 41.2k tokens; $0.50",
        "model google/gemini-4-pro: 1 idea, best 1.50x; 3 calls, 2 failed; 8.00k tokens",
        "model openai/gpt-6: 1 idea, best 3.00x; 4 calls, 1 failed; 33.2k tokens; $0.50",
    ):
        assert part in flat


def crowd(events: list[Event], ideas: int, variants: int) -> Iterator[Event]:
    yield events[0]
    proposed = next(event for event in events if isinstance(event, IdeaProposed))
    written = next(event for event in events if isinstance(event, VariantWritten))
    kernel = written.variant.kernel
    for number in range(1, ideas + 1):
        idea = replace(
            proposed.idea,
            model=f"provider/a-model-{number % 3}",
            text=f"idea {number} " + "with 宽 a long text " * 9,
            parent="conv2d/wmma" * 3,
        )
        yield IdeaProposed(at_s=1.0, idea=idea, number=number, expansion=0)
        for i in range(1, variants + 1):
            of_idea = replace(
                written.variant,
                idea=idea.id,
                kernel=replace(kernel, source=f"class ModelNew:  # {number}.{i}"),
            )
            yield VariantWritten(at_s=1.0, variant=of_idea, number=i)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (80, 50), (140, 24), (110, 40), (60, 15), (200, 60)])
@pytest.mark.parametrize("ideas", [1, 8, 30])
@pytest.mark.parametrize("variants", [0, 2, 8, 20])
@pytest.mark.parametrize("models", [0, 3])
def test_the_view_fits_the_terminal(
    size: tuple[int, int], ideas: int, variants: int, models: int, whole_run: list[Event]
) -> None:
    width, height = size
    calls = [
        call(1.0, number, f"provider/a-model-{number}" * number, 10**9, 1000.0, cause=Cause.TIMEOUT)
        for number in range(models)
    ]
    events = [*crowd(whole_run, ideas, variants), *calls]
    progress = after(events, evaluations=2000, seconds=36000.0, tokens=10**10, dollars=10_000.0)
    lines = text_of(screen(width, height), live_view(progress, screen(width, height), frame=3)).splitlines()
    assert max(cell_len(line) for line in lines) <= width
    assert len(lines) < height
    assert any("idea 30" in line or "idea 8" in line or "idea 1" in line for line in lines)
    if ideas == 30 and height < 40:
        assert re.search(r"and \d+ more ideas", "\n".join(lines))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_closed_round_is_one_line(width: int, whole_run: list[Event]) -> None:
    progress, console = after(whole_run), screen(width)
    for summary in progress.summaries:
        console.print(round_line(progress, summary, console), no_wrap=True, overflow="ellipsis")
    lines = console.export_text().splitlines()
    assert len(lines) == 2
    assert "round 1/2" in lines[0]
    assert "0.500 ms  4.00x" in lines[1]
    assert "★ d" in lines[1]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_closing_table(width: int, whole_run: list[Event]) -> None:
    text = text_of(screen(width), closing_view(after(whole_run), screen(width)))
    assert max(map(len, text.splitlines())) <= width
    flat = " ".join(text.split())
    assert "round ideas evals correct best ms speedup 95 % interval" in flat
    assert (
        "1 2 4 25 % 1.00 2.00x [1.96, 2.04] memory access: Load the tile with 128-bit [31mvector loads"
        in flat
    )
    assert "2 1 5 33 % 0.500 4.00x [3.92, 4.08] data type and precision: Use the tensor cores" in flat
    assert "confirmed yes, 0.513 ms 3.90x [3.82, 3.98] over eager (2.00 ms), 2.92x over compile" in flat
    assert "verdicts 2 correct, 1 compile_error" in flat


def test_a_round_without_gain_refers_to_the_one_that_had_it(runs: dict[str, list[Event]]) -> None:
    events = runs["interrupted"]
    best = next(event.best for event in events if isinstance(event, RoundClosed))
    progress = after([*events, RoundClosed(at_s=16.0, round=2, best=best, evaluations=5)])
    assert "unchanged since round 1" in text_of(screen(80), closing_view(progress, screen(80)))
    assert "unchanged since round 1" in text_of(
        screen(80), round_line(progress, progress.rounds[2], screen(80))
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_what_stays_on_the_terminal(width: int, whole_run: list[Event]) -> None:
    console = screen(width)
    observer = LiveConsole(console=console, clock=lambda: 0.0)
    for event in whole_run:
        observer.on_event(event)
    observer.close()
    text = console.export_text(clear=False)
    assert text.count("round 1/2") == 1
    assert text.count("95 % interval") == 1
    assert (
        text.index("round 1/2") < text.index("round 2/2") < text.index("95 % interval") < text.index("winner")
    )


@pytest.mark.parametrize("script", ["whole", "interrupted", "killed", "resumed"])
def test_the_terminal_gets_its_cursor_back(script: str, runs: dict[str, list[Event]]) -> None:
    console = screen(100)
    observer = LiveConsole(console=console)
    for event in runs[script]:
        observer.on_event(event)
    observer.close()
    assert isinstance(console.file, io.StringIO)
    written = console.file.getvalue()
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")


def test_a_verdict_is_never_told_by_colour_alone(whole_run: list[Event]) -> None:
    verdicts = [event for event in whole_run if isinstance(event, VariantEvaluated) and event.at_s > 10]
    console = Console(file=io.StringIO(), force_terminal=True, width=140, height=30, no_color=True)
    progress = after([event for event in whole_run if event.at_s < 20])
    with console.capture() as capture:
        console.print(live_view(progress, console, frame=0))
    assert len(verdicts) == 6
    assert re.search(
        r"★ 4\.00x +✓ 2\.00x= +∞ time +† crash +! error +\? infra", re.sub("\x1b.*?m", "", capture.get())
    )


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class AsciiTerminal(Terminal):
    encoding = "ascii"


def test_chooses_by_what_it_writes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert isinstance(console_observer(Terminal(), rounds=3), LiveConsole)
    assert isinstance(console_observer(screen(80)), LiveConsole)
    assert isinstance(console_observer(io.StringIO()), PlainConsole)
    assert isinstance(console_observer(AsciiTerminal()), PlainConsole)
    assert isinstance(console_observer(Console(file=io.StringIO())), PlainConsole)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(console_observer(Terminal()), PlainConsole)
