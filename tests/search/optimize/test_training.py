"""A model that is trained, from the profile to `optimized/`: honest kernels, and planted faults."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest

from evaluators.device.settings import Settings
from evaluators.device.worker import Worker
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel
from evaluators.reference.loading import load_problem
from kernel_library.catalogue.library import FolderLibrary
from search.optimize import __main__ as optimize
from search.optimize import searching, stages
from search.optimize.__main__ import main
from search.optimize.extraction.record import Extraction
from search.optimize.profiling import profile as profiling
from search.optimize.profiling.record import Profile
from search.optimize.searching import AcceptedKernel
from search.optimize.stages import OptimizeRun
from search.optimize.verification.launcher import VerificationTask
from search.optimize.verification.record import Verification
from tests.kernel_library.entries import entry, shipped
from tests.search.optimize.example_models import FAST, equally_long
from tests.search.optimize.trained_models import FAULTS, NOISY, QWEN, RMSNORM, norm_kernel

NORM = "pow.Tensor_Scalar + mean.dim + add.Tensor + rsqrt + mul.Tensor + mul.Tensor"
GIVEN = ("device=cpu", "backward=true", "iterations=2", "turns=6", "compared=1", "report=false")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.root, "handlers", [])
    (tmp_path / "qwen.py").write_text(QWEN)
    (tmp_path / "noisy.py").write_text(NOISY)
    return tmp_path


def folder_of(place: Path) -> Path:
    [folder] = (place / "outputs" / "optimize").iterdir()
    return folder


@pytest.mark.core
@pytest.mark.slow
def test_a_model_is_trained_with_a_kernel_of_the_library(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is judged with its gradients, installed, and trained with for 50 steps. On a busy machine it
    need not be faster."""

    def accepted(kernel: Kernel, evaluation: Evaluation, origin: str) -> AcceptedKernel:
        assert evaluation.status is Status.CORRECT and evaluation.passes is not None, evaluation.log
        return AcceptedKernel(kernel=kernel, speedup=2.0, low=1.9, high=2.1, origin=origin)

    monkeypatch.setattr(searching, "accepted_kernel", accepted)
    monkeypatch.setattr(stages, "VerificationTask", partial(VerificationTask, in_place={"optimized": {}}))
    library = FolderLibrary(str(place / "library"))
    problem = shipped("library/rmsnorm", device="cpu", backward=True)
    fields = {"op": "rmsnorm", "function": "rmsnorm", "dtypes": ("float32",), "shapes": ("...x1..",)}
    assert library.add(entry(problem, RMSNORM, **fields))
    given = ["model=qwen.py", *GIVEN, "library.root=library", "least_gain=0", "targets=1", "compile=none"]
    assert main(given) == 0
    said = capsys.readouterr().out
    extraction = Extraction.read(folder_of(place) / "extraction.json")
    [norm] = [each for each in extraction.problems if each.target == NORM]
    assert len(norm.places) == 6 and f"{norm.name}: library kernel" in said
    found = Verification.read(folder_of(place) / "verification.json")
    curves = found.curves
    assert found.passes and found.backward and found.calls == {norm.name: 6}
    assert curves is not None and curves.is_conclusive and len(curves.with_kernels) == 50
    assert curves.with_kernels[-1] < 0.5 * curves.original[0], "it learns"
    assert found.ways == ["eager", "rewritten", "optimized"]
    assert found.memory["optimized"]["saved"] < found.memory["eager"]["saved"]
    text = (folder_of(place) / "optimized" / "README.md").read_text()
    assert "The kernels run in training mode, with gradients" in text and "optimizer.step()" in text
    assert "same outputs and gradients on 1 sets" in said and "same loss curve over 50 steps of adamw" in said


def planted(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Makes `source` the kernel of the norms, without the judge; the profile takes no time."""

    async def find_kernels(
        run: OptimizeRun, profile: Profile, traced_models: object, found: Extraction
    ) -> object:
        [name] = [each.name for each in found.problems if each.target == NORM]
        kernel = Kernel(source=source, language="triton")
        return {name: AcceptedKernel(kernel=kernel, speedup=9.0, low=8.0, high=10.0, origin="search")}

    monkeypatch.setattr(profiling, "peaks_of", lambda device, cache: FAST)
    monkeypatch.setattr(profiling, "measure", equally_long)
    monkeypatch.setattr(optimize, "find_kernels", find_kernels)


PLANTED = ["model=qwen.py", "model.sizes.layers=1", *GIVEN, "targets=40", "library.use=false", "compile=none"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_what_the_verification_refuses(
    fault: str | None, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient that is written has no effect in a single process, so only the judge refuses it."""
    planted(monkeypatch, norm_kernel() if fault is None else FAULTS[fault])
    assert main([*PLANTED, "training.steps=12"]) == 0
    found = Verification.read(folder_of(place) / "verification.json")
    if fault is None or "written" in fault:
        assert found.passes and not any("differ" in why for why in found.left_out.values())
        return
    [why] = found.left_out.values()
    if "kept" in fault:
        assert why == "the loss curve of the training differs with it"
    else:
        assert why.startswith("the outputs or gradients differ with it: error") and "norm.weight" in why
    assert not found.calls and not (folder_of(place) / "optimized").exists()


@pytest.mark.slow
def test_what_the_judge_refuses(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, "")
    assert main([*PLANTED, "stop_after=extract"]) == 0
    extraction = Extraction.read(folder_of(place) / "extraction.json")
    [norm] = [each for each in extraction.problems if each.target == NORM]
    path = str(folder_of(place) / norm.file)
    problem = load_problem("file", path=path, device="cpu", libraries="any", backward=True, timed=False)

    worker = Worker(root=place / "worker", settings=Settings())

    def judged(source: str) -> Status:
        return worker.measure(problem, Kernel(source=source, language="cpp"), b"").status

    assert judged(norm_kernel()) is Status.CORRECT
    wrong = {name: judged(source) for name, source in FAULTS.items()}
    worker.close()
    assert wrong == dict.fromkeys(FAULTS, Status.INCORRECT)


@pytest.mark.slow
def test_dropout_and_batch_norms_stay_as_they_are(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model=noisy.py", *GIVEN, "least_gain=0", "stop_after=extract"]) == 0
    said = capsys.readouterr().out
    assert "not extracted: native_batch_norm: it updates the running statistics of a batch norm" in said
    problems = Extraction.read(folder_of(place) / "extraction.json").problems
    assert {each.target for each in problems} >= {"addmm", "relu"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            ("torch.relu(", "torch.utils.checkpoint.checkpoint(torch.relu, use_reentrant=False, *["),
            "its forward checkpoints activations; switch that off while it is recorded",
        ),
        (
            ("torch.relu(self.norm(self.first(x)))", "Doubled.apply(self.first(x))"),
            "its forward calls Doubled, a torch.autograd.Function, whose backward cannot be recorded",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_early(
    changed: tuple[str, str], why: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    function = (
        "\n\nclass Doubled(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return 2 * x\n\n    @staticmethod\n    def backward(ctx, grad):\n        return grad\n"
    )
    source = NOISY.replace(*changed).replace("self.first(x)))))", "self.first(x))])))")
    (place / "noisy.py").write_text(source + function)
    assert main(["model=noisy.py", *GIVEN, "library.use=false"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said == f"search.optimize: model=noisy.py: kernels cannot be installed: {why}"
