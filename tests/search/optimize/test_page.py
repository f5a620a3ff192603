"""`profile.html` as a file and in a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from ideatree.commands import main as command
from search.optimize.extraction.record import EXTRACTION, ExtractedProblem, Extraction, Place
from search.optimize.outcome import KERNELS, outcome_of
from search.optimize.profile_page import BadProfile, modules, page_data, write_page
from search.optimize.profiling.record import Profile, ShapeTime
from search.optimize.verification.record import FILE, LossCurves, ModelCheck, Verification
from tests.search.optimize.profiling.test_profile import CHAIN, SOFTMAX, VIEW, case, profile, target
from tests.search.report.in_browser import ChartsInBrowser, browser, page

__all__ = ["browser", "page"]  # fixtures


def made() -> Profile:
    layers = [case(0.5, 0.2, calls=2, site=f"h.{n}.mlp") for n in range(12)]
    shapes = (
        ShapeTime(name="few", weight=0.75, wall_ms=4.0),
        ShapeTime(name="many", weight=0.25, wall_ms=28.0),
    )
    return profile(
        target("mm", *layers, kind="contraction"),
        SOFTMAX,
        VIEW,
        chains=(CHAIN,),
        notes=("rough",),
        shapes=shapes,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("optimize")
    (folder / "profile.json").write_text(json.dumps(made().to_json()))
    with_outcome(folder)
    write_page(folder, folder / "report.html")  # where the browser's tests look
    return folder


@pytest.mark.slow
def test_the_command_writes_it_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.json").write_bytes((folder / "profile.json").read_bytes())
    assert command(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'profile.html'}\n"
    assert "Where the time of tiny goes" in (tmp_path / "profile.html").read_text()
    assert command(["report", str(folder), f"out={tmp_path / 'x.html'}"]) == 0
    assert (tmp_path / "x.html").read_text() == (folder / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("text", ["{}", '{"version": 0}', "[]", "half a li"])
def test_an_invalid_profile_is_a_one_line_error(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.json").write_text(text)
    assert command(["report", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "profile.json cannot be read" in said
    assert not (tmp_path / "profile.html").exists()


def test_modules_have_the_time_of_their_operators() -> None:
    found = {each["id"]: each for each in modules(made())}
    assert found["model"]["parent"] == "" and found["model"]["name"] == "tiny"
    assert found["model"]["time_ms"] == pytest.approx(12 * 0.5 + 3 + 0.5)
    assert found["/h"]["time_ms"] == pytest.approx(9.5) and found["/h"]["parent"] == "model"
    assert found["/h/3/mlp/mm()"]["operator"] and not found["/h/3/mlp"]["operator"]
    assert found["/h/3/mlp"]["calls"] == 2
    numbers = [each.split("/")[2] for each in found if each.endswith("mlp")]
    assert numbers == [str(n) for n in range(12)]
    for each in found.values():
        assert each["parent"] in ("", *found)


def with_outcome(folder: Path) -> Path:
    """Writes the files of a verified run with two problems, one of which has a kernel."""
    place = [Place(calls=(0,), site="h.0.mlp", time_ms=1.0), Place(calls=(3,), site="h.1.mlp", time_ms=1.0)]
    problems = [
        ExtractedProblem(name=name, target=name, places=tuple(place), floor_ms=0.5, exact=True)
        for name in ("1_softmax", "2_mm")
    ]
    Extraction(problems=tuple(problems), left_out={"mm + mm": "one waits"}).write(folder / EXTRACTION)
    kernel = {"speedup": 3.0, "low": 2.5, "high": 3.5, "origin": "library softmax/cpp"}
    (folder / KERNELS).write_text(json.dumps({"1_softmax": kernel}))
    Verification(
        checks=[ModelCheck(seed=0, error=1e-7, eager_error=1e-7, allowed=4e-7)],
        calls={"1_softmax": 2},
        shapes={"few": 0.75, "many": 0.25},
        sessions=[
            {
                "few": {"eager": [1.0] * 6, "optimized": [1.0] * 6},
                "many": {"eager": [5.0] * 6, "optimized": [1.0] * 6},
            }
        ],
        failed={"max-autotune": "it took longer than 5 s"},
        backward=True,
        curves=LossCurves(
            optimizer="adamw",
            learning_rate=1e-3,
            original=[4.0, 2.0, 1.0],
            with_kernels=[4.0, 2.1, 1.0],
            spread=[0.0, 0.1, 0.1],
            allowed=[0.01, 0.4, 0.4],
        ),
        memory={"eager": {"step": 2**30, "saved": 2**20}},
    ).write(folder / FILE)
    return folder


def test_the_outcome_has_ways_shapes_and_problems(tmp_path: Path) -> None:
    assert outcome_of(tmp_path, made()) is None, "it is not verified yet"
    found = outcome_of(with_outcome(tmp_path), made())
    assert found is not None and found["passes"]
    assert [(each["name"], each["speedup"]) for each in found["ways"]] == [
        ("eager", 1.0),
        ("with the kernels", 2.0),
    ]
    assert [(each["name"], each["ways"][1]["speedup"]) for each in found["shapes"]] == [
        ("few", 1.0),
        ("many", 5.0),
    ]
    assert found["curves"]["differences"] == pytest.approx([0.0, 0.1, 0.0])
    assert found["memory"][0].endswith("memory: a step needs 1024 MiB, saved between the passes 1 MiB")
    first, second = found["problems"]
    assert (first["used"], first["kernel"]["speedup"], first["sites"]) == (2, 3.0, ["h.*.mlp"])
    assert (second["used"], second["kernel"]) == (0, None)
    (tmp_path / FILE).write_text("{}")
    (tmp_path / "profile.json").write_text(json.dumps(made().to_json()))
    with pytest.raises(BadProfile, match="the files of the run cannot be read"):
        write_page(tmp_path)


def test_the_page_has_the_ranking() -> None:
    shown = page_data(made())
    [first, *_] = shown["targets"]
    assert (first["name"], first["kind"]) == ("mm + _softmax", "chain")
    softmax = next(each for each in shown["targets"] if each["name"] == "_softmax")
    assert softmax["library"] == ["softmax/x", 2.0, ""]
    assert softmax["speedup_by_library"] == pytest.approx(1 / 0.85, rel=1e-4)
    assert [each["name"] for each in shown["operators"]] == ["mm", "_softmax", "view"]


class TestInBrowser(ChartsInBrowser):
    def test_it_shows_the_cards_the_targets_and_their_arguments(self, page: Page) -> None:
        expect(page.locator("#cards .card")).to_have_count(5)
        expect(page.locator("#targets tbody tr")).to_have_count(3)
        page.locator("#targets summary").first.click()
        expect(page.locator("#targets pre").first).to_contain_text("T([4], f32)")
        expect(page.locator("#targets pre").first).to_contain_text("ms at few")

    def test_the_model_with_the_kernels_comes_first(self, page: Page) -> None:
        expect(page.locator("#outcome-cards .card")).to_have_text(
            [
                "2.00xover eager [2.00, 2.00]",
                "sameoutputs, compared with the original",
                "1kernel installed",
                re.compile("of the original time"),
            ]
        )
        expect(page.locator("#shapes tbody tr")).to_have_text(
            ["few75.0 %1.00 ms1.00 ms, 1.00x [1.00, 1.00]", "many25.0 %5.00 ms1.00 ms, 5.00x [5.00, 5.00]"]
        )
        expect(page.locator("#problems tbody tr")).to_have_count(2)
        expect(page.locator("#problems")).to_contain_text("in the model, 2 calls")
        expect(page.locator("#said")).to_contain_text("max-autotune failed: it took longer than 5 s")
        expect(page.locator("#chart-ways .bars .point")).to_have_count(2)

    def test_the_losses_of_a_training_are_drawn(self, page: Page) -> None:
        expect(page.locator("#said")).to_contain_text("same loss curve over 3 steps of adamw at 0.001")
        page.locator("#chart-differences").scroll_into_view_if_needed()
        expect(page.locator("#chart-losses .scatterlayer .trace")).to_have_count(2)
        expect(page.locator("#chart-differences .scatterlayer .trace")).to_have_count(3)

    def test_targets_are_chosen_by_kind_and_by_text(self, page: Page) -> None:
        page.locator("select[name=kind]").select_option("chain")
        expect(page.locator("#count")).to_have_text("1 of 3 targets")
        page.get_by_role("button", name="Show all").click()
        page.locator("input[name=text]").fill("mlp")
        expect(page.locator("#targets tbody tr")).to_have_count(1)
        page.get_by_role("button", name="Show all").click()
        expect(page.locator("#targets tbody tr")).to_have_count(3)

    def test_modules_are_drawn_as_boxes(self, page: Page) -> None:
        page.locator("#chart-modules").scroll_into_view_if_needed()
        expect(page.locator("#chart-modules .slice").nth(12)).to_be_attached()
