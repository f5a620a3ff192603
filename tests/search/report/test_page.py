"""The page as a file: what is in it, what may run, how large it is."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from evaluators.records.evaluation import Status
from evaluators.records.probe import Probe, ProbeStatus, ProbeTimes
from evaluators.records.resources import resource_lines
from search.app import report_packages
from search.app.report_packages import missing_packages
from search.recordings.verdicts import RECORDINGS
from search.records.events import Event, IdeaProposed, ProbeMeasured, ProbeRequested, RoundClosed
from search.records.journal import Journal
from search.records.probe_request import ProbeRequest
from search.report.observer import ReportObserver
from search.report.run_frames import load_run
from search.report.run_page import MOST_BYTES, render, write_report
from search.report.texts import Texts, cut
from tests.search.report.synthetic import ATTACK, SyntheticRun


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SyntheticRun:
    return SyntheticRun(tmp_path_factory.mktemp("small"), rounds=2, ideas=2, branch=3, lines=5)


@pytest.fixture(scope="module")
def page(small: SyntheticRun) -> str:
    return render(load_run(small.folder))


def block(page: str, id: str) -> str:
    found = re.search(rf'<script type="[\w/-]+" id="{id}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return found[1]


def data_of(page: str) -> Any:
    return json.loads(block(page, "data"))


def texts_of(page: str) -> list[str]:
    found: list[str] = json.loads(gzip.decompress(base64.b64decode(block(page, "texts"))))
    return found


@pytest.mark.slow
def test_the_policy_allows_these_scripts_and_nothing_from_outside(page: str) -> None:
    found = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert found is not None
    policy = dict(each.strip().split(" ", 1) for each in found[1].replace("&#39;", "'").split(";"))
    assert policy["default-src"] == "'none'"
    assert "connect-src" not in policy
    assert policy["img-src"] == "data: blob:"
    own = page[page.rindex("<script>") + len("<script>") : page.rindex("</script>")]
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'"
        for each in (block(page, "plotly"), own)
    ]
    assert policy["script-src"].split() == hashes


def test_nothing_of_the_run_stands_in_the_page_as_markup(page: str) -> None:
    """Its data is JSON without a `<`, its texts are packed."""
    assert ATTACK not in page
    assert "<" not in block(page, "data")
    assert "<" not in block(page, "texts")
    assert len(re.findall("<script", page.replace(block(page, "plotly"), ""))) == 4


def test_what_is_dangerous_is_there_as_text(page: str) -> None:
    assert any(ATTACK in each["text"] for each in data_of(page)["ideas"])
    assert any(ATTACK in each for each in texts_of(page))
    assert any(ATTACK in text for _, text in data_of(page)["run"]["reflections"])


def test_each_variant_has_its_texts(page: str, small: SyntheticRun) -> None:
    texts, data = texts_of(page), data_of(page)
    calls = {each["id"]: each for each in data["calls"]}
    for each in data["variants"]:
        variant = small.state.tree.variants[each["id"]]
        assert texts[each["source"]] == variant.kernel.source
        assert variant.evaluation is not None
        assert (texts[each["log"]] if each["log"] is not None else "") == variant.evaluation.log
        assert variant.kernel.source in texts[calls[each["calls"][0]]["answer"]]


def test_each_variant_has_the_resources_of_its_functions(page: str, small: SyntheticRun) -> None:
    for each in data_of(page)["variants"]:
        found = small.state.tree.variants[each["id"]].evaluation
        assert found is not None
        assert each["resources"] == resource_lines(found.resources)
        assert bool(each["resources"]) == (found.status is Status.CORRECT)


def test_a_profiled_kernel_has_its_diagnosis(page: str, small: SyntheticRun) -> None:
    data = data_of(page)
    assert data["diagnoses"].keys() == small.state.diagnoses.keys() != set()
    (found,) = data["diagnoses"].values()
    assert [each["name"] for each in found["findings"]] == ["bank conflicts", "launch-bound"]
    assert [
        "Stall",
        "waiting at a barrier, 31% of the warps' time.\n   at kernel.py:12\n   at kernel.py:30",
    ] in (found["figures"])
    assert [each["total_us"] for each in found["times"]] == [78.53, 10.5]
    assert max(len(each["kernel"]) for each in found["times"]) < 110


@pytest.mark.slow
def test_a_run_of_500_variants_is_small_enough(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    assert len(run.state.tree.variants) == 520
    assert write_report(tmp_path).stat().st_size <= MOST_BYTES


@pytest.mark.slow
def test_long_texts_are_cut_with_a_note(monkeypatch: pytest.MonkeyPatch, small: SyntheticRun) -> None:
    whole = len(render(load_run(small.folder)).encode())
    monkeypatch.setattr("search.report.run_page.MOST_BYTES", whole - 100)
    page = render(load_run(small.folder))
    assert len(page.encode()) < whole
    longest = max(len(each.kernel.source) for each in small.state.tree.variants.values())
    assert max(map(len, texts_of(page))) < longest


def test_a_text_keeps_its_beginning_and_its_end() -> None:
    text = "a" * 700 + "b" * 300
    short = cut(text, 300)
    assert short == "a" * 200 + "\n[... 700 characters omitted; the run folder has them ...]\n" + "b" * 100
    assert cut(text, 1000) == text


def test_equal_texts_are_there_once() -> None:
    texts = Texts()
    assert [texts.add(each) for each in ("x", "", "y", "x")] == [0, None, 1, 0]


@pytest.mark.parametrize("file", ["torn", "foreign", "absent"])
def test_an_unreadable_record_of_calls_does_not_prevent_the_report(file: str, tmp_path: Path) -> None:
    SyntheticRun(tmp_path, rounds=1, ideas=1, branch=1, lines=2)
    path = tmp_path / "model_calls.jsonl"
    if file == "absent":
        path.unlink()
    else:
        path.write_text('{"id": "00000' if file == "torn" else '{"id": "000001", "prompt": null}\n')
    assert data_of(render(load_run(tmp_path)))["variants"][0]["calls"] == []


@pytest.mark.slow
def test_the_report_is_written_when_a_round_closes(small: SyntheticRun, tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_bytes((small.folder / "journal.jsonl").read_bytes())
    observer = ReportObserver(tmp_path)
    closed = RoundClosed(at_s=1.0, round=1, best=None, evaluations=3)
    idea = next(iter(small.state.tree.ideas.values()))
    events: list[tuple[Event, bool]] = [
        (IdeaProposed(at_s=0.5, idea=idea, number=1, expansion=0), False),
        (closed, True),
    ]
    for event, writes in events:
        observer.on_event(event)
        assert (tmp_path / "report.html").exists() == writes
    observer.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["journal.jsonl", "report.html"]


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_packages() == []
    monkeypatch.setattr(report_packages, "find_spec", lambda name: None)
    assert missing_packages() == ["pandas", "plotly"]


@pytest.mark.slow
def test_the_shipped_recording_has_a_report(tmp_path: Path) -> None:
    data = data_of(write_report(RECORDINGS / "conv2d_h200", tmp_path / "x.html").read_text())
    assert data["winner"]["confirmed"]
    assert ["winner", "variant 13748ec83f40, round 7, triton"] in data["run"]["closing"]
    assert not (RECORDINGS / "conv2d_h200" / "report.html").exists()


def test_probes_have_a_table(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "probed", rounds=1, ideas=1, branch=1, lines=5)
    assert data_of(render(load_run(run.folder)))["probes"] == []
    asked = ProbeRequest(question=f"is it {ATTACK}?", what="no stores", base="", round=1)
    timed = Probe(status=ProbeStatus.TIMED, times=ProbeTimes.of([1.0] * 6, [2.0] * 6))
    with Journal(run.folder / "journal.jsonl") as journal:
        journal.append([ProbeRequested(at_s=1.0, request=asked)])
        journal.append([ProbeMeasured(at_s=1.0, request_id=asked.id, kernel=None, probe=timed)])
    page = render(load_run(run.folder))
    (row,) = data_of(page)["probes"]
    assert row["question"] == asked.question and row["result"].startswith("1 ms a call [")
    assert ATTACK not in page
