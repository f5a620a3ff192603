"""Searches whose models are the real SDKs, talking to local servers that speak the providers' formats."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from search.models import service
from search.models.providers.google import Google
from search.models.providers.openai import OpenAI
from search.proposers.llm.proposer import LLMProposer
from search.records.events import ModelCalled
from search.records.journal import replay
from search.records.model_calls import LLM, Cause, Limits, Price, Usage
from search.records.run_state import rebuild
from search.records.tree import LIBRARY
from search.run import __main__ as run
from tests.search.fakes import FakeEvaluator, code_answer, correct, ideas_answer, search, state_of
from tests.search.models.providers.servers import (
    GEMINI,
    OPENAI,
    Asked,
    ModelServer,
    Reply,
    Script,
    WireFormat,
)
from tests.search.run.test_run import SMALL, only_folder

KEY = "sk-planted-9f8e7d6c5b4a"
PRICE = Price(input=1.25, cached_input=0.125, output=10.0)
WIRES: dict[str, tuple[WireFormat, Callable[..., LLM]]] = {
    "openai": (OPENAI, OpenAI),
    "google": (GEMINI, Google),
}
WORDS = ("loads", "stores", "tiles", "warps", "registers", "caches", "loops", "masks", "layouts", "copies")


class Writer:
    """A model that always has something new: ideas for a question with a schema, otherwise a kernel."""

    def __init__(self, kernel: Callable[[int], str] = code_answer, **more: Any) -> None:
        self.kernel, self.more, self.count = kernel, more, 0

    def __call__(self, asked: Asked, before: int) -> Reply:
        self.count += 1
        if asked.schema is None:
            return Reply(text=self.kernel(self.count), **self.more)
        (seed,) = asked.schema["properties"]["ideas"]["items"]["properties"]["seed"]["enum"]
        found = re.search(r"Propose (\d+) ", asked.prompt)
        assert found is not None
        texts = [f"Change {WORDS[(self.count + i) % 10]}, way {self.count}" for i in range(int(found[1]))]
        return Reply(text=ideas_answer(*texts, seed=seed), **self.more)


def fake_search(wire: str, tmp_path: Path, script: Script, **more: Any) -> Path:
    """A round of two ideas with two variants each, evaluated by nobody; returns the journal."""
    form, provider = WIRES[wire]
    path = tmp_path / "journal.jsonl"
    limits = more.pop("limits", Limits(output_tokens=2000, timeout_s=30.0, tries=3))
    with ModelServer(form, script) as server:
        model = provider(
            model="m-1", base_url=server.base_url, key_variable="PLANTED_KEY", price=PRICE, limits=limits
        )
        evaluator = FakeEvaluator(verdict=lambda kernel: correct())
        parts = {"proposer": LLMProposer({"one": model}), "evaluator": evaluator}
        search(path, rounds=1, ideas=2, branch=2, **parts, **more)
    return path


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLANTED_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setattr(service, "FIRST_PAUSE_S", 0.01)


# --- bad days -------------------------------------------------------------------------------------

REFUSALS = {"openai": Reply(refusal="I cannot."), "google": Reply(refusal="SAFETY")}
CUT_OFF = {"openai": Reply(text="class M", finish="length"), "google": Reply(text="cl", finish="MAX_TOKENS")}
BAD_DAYS: list[tuple[str, Callable[[str], Reply], Cause]] = [
    (
        "429, told when",
        lambda w: Reply(status=429, headers={"Retry-After": "0"}, body="{}"),
        Cause.RATE_LIMITED,
    ),
    ("429, not told", lambda w: Reply(status=429, body={"error": {"message": "slow"}}), Cause.RATE_LIMITED),
    ("500", lambda w: Reply(status=500, body="<html>"), Cause.SERVER_ERROR),
    ("503", lambda w: Reply(status=503, body="{}"), Cause.SERVER_ERROR),
    ("reset", lambda w: Reply(hang_up="before"), Cause.CONNECTION),
    ("torn", lambda w: Reply(text="x" * 4000, hang_up="within"), Cause.CONNECTION),
    ("slow", lambda w: Reply(text="late", delay_s=3.0), Cause.TIMEOUT),
    ("refusal", lambda w: REFUSALS[w], Cause.REFUSED),
    ("empty", lambda w: Reply(text=""), Cause.EMPTY),
    ("cut off", lambda w: CUT_OFF[w], Cause.CUT_OFF),
    ("not the schema", lambda w: Reply(text='{"ideas": [{"text": 7}]}'), Cause.MALFORMED),
    ("no JSON, no code", lambda w: Reply(text="Let me think about it."), Cause.MALFORMED),
    ("no ModelNew", lambda w: Reply(text="```python\nx = 1\n```"), Cause.MALFORMED),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "wire"),
    [
        pytest.param(0, "openai", id="ideas-openai"),
        pytest.param(2, "google", id="code-google"),
        pytest.param(0, "google", id="ideas-google", marks=pytest.mark.exhaustive),
        pytest.param(2, "openai", id="code-openai", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize(("reply", "cause"), [day[1:] for day in BAD_DAYS], ids=[day[0] for day in BAD_DAYS])
def test_a_bad_day_is_a_record_and_the_search_goes_on(
    tmp_path: Path, wire: str, place: int, reply: Callable[[str], Reply], cause: Cause
) -> None:
    writer = Writer()

    def script(asked: Asked, before: int) -> Reply:
        return reply(wire) if before == place else writer(asked, before)

    timeout_s = 2.0 if cause is Cause.TIMEOUT else 30.0
    limits = Limits(output_tokens=2000, timeout_s=timeout_s, tries=3)
    path = fake_search(wire, tmp_path, script, limits=limits)
    state = state_of(path)
    assert state.finished is not None
    assert state.finished.reason == "rounds"
    assert len(state.tree.ideas) == 2
    assert len(state.tree.variants) == 4
    calls = [event.call for event in replay(path) if isinstance(event, ModelCalled)]
    failed = [call for call in calls if call.cause is not None]
    is_lost = cause in (Cause.CONNECTION, Cause.TIMEOUT)
    assert [(call.cause, call.attempt, call.estimated) for call in failed] == [(cause, 1, is_lost)]
    lines = [json.loads(line) for line in (tmp_path / "model_calls.jsonl").read_text().splitlines()]
    assert [line["cause"] for line in lines] == [call.cause and call.cause.value for call in calls]
    assert all(line["prompt"] for line in lines)
    assert KEY not in path.read_text() + (tmp_path / "model_calls.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("wire", list(WIRES))
@pytest.mark.parametrize(
    "text",
    [
        "class ModelNew: ...  # {n}, without a fence",
        "```bash\npip install x\n```\nand\n```python\nclass ModelNew: ...  # {n}\n```\nand\n```\nx\n```",
    ],
)
def test_code_is_found_without_a_fence_and_among_several(tmp_path: Path, wire: str, text: str) -> None:
    path = fake_search(wire, tmp_path, Writer(lambda n: text.replace("{n}", str(n))))
    assert len(state_of(path).tree.variants) == 4
    assert state_of(path).spent.failed == 0


@pytest.mark.slow
@pytest.mark.parametrize("wire", list(WIRES))
def test_an_idea_that_repeats_an_old_one_is_asked_for_again_once(tmp_path: Path, wire: str) -> None:
    def script(asked: Asked, before: int) -> Reply:
        if asked.schema is None:
            return Reply(text=code_answer(before))
        return Reply(text=ideas_answer("Do the same thing.", "do the same thing!"))

    state = state_of(fake_search(wire, tmp_path, script))
    assert [idea.text for idea in state.tree.ideas.values()] == ["Do the same thing."]
    assert state.spent.calls == 2 + 2


@pytest.mark.slow
@pytest.mark.parametrize("wire", list(WIRES))
def test_a_key_that_is_not_accepted_ends_the_run_with_the_reason(tmp_path: Path, wire: str) -> None:
    body = {
        "error": {"message": f"Incorrect API key provided: {KEY}", "status": "UNAUTHENTICATED", "code": 401}
    }
    path = fake_search(wire, tmp_path, lambda asked, before: Reply(status=401, body=body))
    state = state_of(path)
    assert state.finished is not None
    assert "access denied" in state.finished.reason
    assert state.spent.calls == 1
    assert KEY not in path.read_text() + (tmp_path / "model_calls.jsonl").read_text()


# --- whole searches -------------------------------------------------------------------------------

KERNEL = """```python
import os
import torch
from torch import nn

print("variant {n}", dict(os.environ))
assert "{key}" not in str(dict(os.environ)), "a key"


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim={dim})
```"""


@pytest.mark.slow
@pytest.mark.parametrize("wire", list(WIRES))
def test_a_whole_search(tmp_path: Path, wire: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Structured ideas, kernels that are evaluated, a repair, tokens and dollars to the cent; the key is
    nowhere but in the requests."""
    usage = Usage(input_tokens=12_345, cached_tokens=10_240, output_tokens=6_789)

    def kernel(number: int) -> str:
        dim = "0" if number == 3 else "-1"  # one is wrong, and is repaired
        return KERNEL.replace("{n}", str(number)).replace("{key}", KEY[3:]).replace("{dim}", dim)

    with ModelServer(WIRES[wire][0], Writer(kernel, usage=usage, thought_tokens=6000)) as server:
        arguments = [each for each in SMALL if not each.startswith(("wandb", "library"))]
        status = run.main(
            [
                *arguments,
                "wandb=offline",
                "proposer=llm",
                f"llm={wire}",
                f"llm.{wire}.base_url={server.base_url}",
                f"llm.{wire}.model=m-1",
                f"llm.{wire}.price.input=1.25",
                f"llm.{wire}.price.cached_input=0.125",
                f"llm.{wire}.price.output=10",
                "rounds=2",
                "ideas=1",
                "branch=2",
                "budget.dollars=50",
                f"out={tmp_path / 'outputs'}",
            ]
        )
    assert status == 0
    folder = only_folder(tmp_path)
    state = rebuild(replay(folder / "journal.jsonl"))
    asked_for = [idea for idea in state.tree.ideas.values() if idea.proposer != LIBRARY]
    assert [idea.model for idea in asked_for] == [f"{wire}/m-1"] * 2
    assert Counter(state.statuses) == Counter({"correct": 4 + 1, "incorrect": 1}), "and the library's kernel"
    assert sum(bool(variant.repairs) for variant in state.tree.variants.values()) == 1
    calls = len(server.asked)
    assert state.spent.calls == calls >= 2 + 4 + 1
    # 2105 × 1.25 $ + 10240 × 0.125 $ + 6789 × 10 $ a million
    dollars = Decimal("0.07180125") * calls
    assert state.spent.dollars == dollars
    cost = json.loads((folder / "summary.json").read_text())["cost"]
    assert (cost["calls"], cost["tokens"]) == (calls, calls * (12_345 + 6_789))
    assert cost["dollars"] == pytest.approx(float(dollars), abs=1e-9)
    header = "authorization" if wire == "openai" else "x-goog-api-key"
    assert all(KEY in asked.headers[header] for asked in server.asked)
    said = capfd.readouterr()
    assert KEY not in said.out + said.err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"journal.jsonl", "model_calls.jsonl", "summary.json", "best.py"} <= {path.name for path in files}
    assert any(path.suffix == ".wandb" for path in files)
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path


@pytest.mark.slow
@pytest.mark.parametrize("wire", list(WIRES))
def test_without_its_key_it_says_what_to_set(
    wire: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name)
    assert run.main([*SMALL, "proposer=llm", f"llm={wire}", f"out={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert "_API_KEY" in error
    assert len(error.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
