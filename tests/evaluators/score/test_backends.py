"""KernelBench's `backend=`: names, files, what each language gained, and generations in each on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluators.base.languages import BACKENDS, LANGUAGES
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Evaluation, Status
from evaluators.score import __main__ as score
from evaluators.score.backends import backend_of, by_language, in_other_languages
from evaluators.suites.kernelbench import ROOT
from tests.evaluators import languages
from tests.evaluators.records.test_evaluation import TIMING

KERNELBENCHS = ("cuda", "triton", "cute", "tilelang", "thunderkittens")


def test_every_backend_is_a_language_with_a_page() -> None:
    assert set(KERNELBENCHS) <= set(BACKENDS) and set(LANGUAGES) <= set(BACKENDS.values())
    assert {path.stem for path in languages.PAGES.glob("*.md")} == set(LANGUAGES)


def test_the_backend_is_the_given_one_or_the_one_of_kernelbenchs_file(tmp_path: Path) -> None:
    assert backend_of(tmp_path, None) is None
    assert backend_of(tmp_path, "cute") == "cute"
    (tmp_path / "generation_config.yaml").write_text("run_name: mine\nbackend: tilelang\n")
    assert backend_of(tmp_path, None) == "tilelang" and backend_of(tmp_path, "triton") == "triton"
    (tmp_path / "generation_config.yaml").write_text("run_name: [")
    assert backend_of(tmp_path, None) is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("hip", "backend is hip, for AMD GPUs; Ideatree judges on NVIDIA GPUs and on CPUs"),
        ("trition", "backend is trition; known: .*; did you mean triton?"),
    ],
)
def test_a_backend_that_cannot_be_judged_is_refused_in_one_line(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        backend_of(tmp_path, name)
    assert "\n" not in str(caught.value)


def test_samples_in_another_language_are_named() -> None:
    names = [("sample 0", "cute"), ("sample 1", "triton"), ("sample 2", "")]
    assert in_other_languages("cute", names) == [
        "not in CuTe DSL (backend=cute): sample 1 is in Triton",
    ]
    assert in_other_languages("thunderkittens", [("sample 0", "cuda")]) == []
    assert in_other_languages(None, names) == []


def test_what_each_language_gained() -> None:
    right = Evaluation(status=Status.CORRECT, timing=TIMING)
    wrong = Evaluation(status=Status.INCORRECT, log="wrong")
    ours = Evaluation(status=Status.INFRASTRUCTURE_ERROR, log="no nvcc")
    found = by_language([("triton", right), ("triton", wrong), ("cuda", wrong), ("cuda", ours), ("", wrong)])
    assert found["triton"] == {
        "samples": 2,
        "correct": 1,
        "geometric mean": pytest.approx(right.speedup),
    }
    assert found["cuda"] == {"samples": 1, "correct": 0, "geometric mean": None}


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "triton", "cute", "tilelang", "helion", "cutile", "gluon"])
def test_a_generation_of_each_backend_is_scored(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    if backend in languages.PACKAGES:
        languages.need(backend)
    level = tmp_path / "clone" / "KernelBench" / "level1"
    level.mkdir(parents=True)
    (level / "1_Example.py").write_text(languages.problem(backend).source)
    monkeypatch.setenv(ROOT, str(tmp_path / "clone"))
    run = tmp_path / "runs" / backend
    run.mkdir(parents=True)
    (run / "level_1_problem_1_sample_0_kernel.py").write_text(languages.example(backend))
    brief = ["evaluator.plan.max_s=0.5", "evaluator.plan.precision=0.05", "evaluator.timeout_s=60"]
    status = score.main([str(run), f"backend={backend}", "evaluator.compile_mode=", *brief])
    said = capsys.readouterr().out
    scores = json.loads((run / "scores.json").read_text())
    assert status == 0, said
    assert scores["backend"] == backend and scores["statuses"] == {"correct": 1}, said
    assert scores["languages"][BACKENDS[backend]]["correct"] == 1
    assert "not in" not in said
