"""The command `ideatree optimize`, from a model's file to `optimized/`, and what it refuses."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from evaluators.app.command import compose_config
from evaluators.records.problem import Kernel
from search.optimize import __main__ as optimize
from search.optimize import stages
from search.optimize.__main__ import OptimizeConfig, expand, main
from search.optimize.extraction.record import Extraction
from search.optimize.extraction.traced_model import TracedModel
from search.optimize.model_config import ProblemModel, source_of
from search.optimize.models.architectures import Diffusers, Torchvision, Transformers
from search.optimize.models.source import FileModel, ModelSource, ModuleModel
from search.optimize.profile_page import read_profile, write_page
from search.optimize.profiling import profile as profiling
from search.optimize.profiling.record import Profile
from search.optimize.searching import AcceptedKernel
from search.optimize.stages import OptimizeRun, budget_lines
from search.optimize.verification.launcher import VerificationTask
from search.optimize.verification.record import ModelCheck, Verification
from tests.search.optimize.example_models import PEAKS, Mlp, rand
from tests.search.optimize.extraction.test_problems import profile_of
from tests.search.optimize.extraction.traced_models import traced
from tests.search.optimize.models.test_source import SOURCE


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(profiling, "peaks_of", lambda device, cache: PEAKS)
    (tmp_path / "my_model.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.slow
def test_a_profile_is_written_and_shown(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["model=my_model.py", "model.sizes.rows=16", "device=cpu", "iterations=2", "warmup=1"]
    assert main([*given, "backward=true", "stop_after=profile"]) == 0
    said = capsys.readouterr().out
    assert "targets are parts of the forward, each with the time of its forward and backward pass" in said
    [folder] = (place / "outputs" / "optimize").iterdir()
    profile = read_profile(folder)
    assert (profile.model, profile.backward, profile.dtype, profile.iterations) == (
        "my_model.py",
        True,
        "float32",
        2,
    )
    called = {each.name: each.calls for each in profile.operators}
    assert (called["addmm"], called["mm"], called["bernoulli_.float"]) == (1, 1, 1)
    assert "my_model.py: forward and backward, float32" in said
    assert [line.split()[0] for line in said.splitlines() if line.startswith(("addmm ", "mm "))]
    assert (folder / "profile.html").stat().st_size > 1_000_000
    follows = json.loads((folder / "profile.json").read_text())["follows"]
    assert follows["device_ms"] == pytest.approx(profile.device_ms)
    assert write_page(folder, place / "other.html").read_text() == (folder / "profile.html").read_text()


UNPLACED = partial(VerificationTask, in_place={"optimized": {}})
"""Skips timing kernels in their places, which on a busy machine may remove any of them."""


async def own_code(
    run: OptimizeRun, profile: Profile, whole: TracedModel, extraction: Extraction
) -> dict[str, AcceptedKernel]:
    texts = {each.name: (run.folder / each.file).read_text() for each in extraction.problems}
    return {
        name: AcceptedKernel(
            kernel=Kernel(source=text.replace("class Model(", "class ModelNew("), language="triton"),
            speedup=2.0,
            low=1.5,
            high=2.5,
            origin="search",
        )
        for name, text in texts.items()
    }


@pytest.mark.slow
def test_code_with_different_outputs_is_not_delivered(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Verification(checks=[ModelCheck(seed=0, error=1.0, eager_error=0.0, allowed=1e-6)], calls={})
    monkeypatch.setattr(optimize, "find_kernels", own_code)
    monkeypatch.setattr(stages, "verify_in_subprocess", lambda *given: wrong)
    given = ["model=my_model.py", "device=cpu", "iterations=1", "report=false", "library.use=false"]
    assert main([*given, "least_gain=0"]) == 2
    assert "has different outputs even without kernels" in capsys.readouterr().err
    [folder] = (place / "outputs" / "optimize").iterdir()
    assert not (folder / "optimized").exists()


@pytest.mark.core
@pytest.mark.slow
def test_a_model_is_delivered_with_kernels(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels are the problems' references, so nothing has to be found."""

    monkeypatch.setattr(optimize, "find_kernels", own_code)
    monkeypatch.setattr(stages, "VerificationTask", UNPLACED)
    given = ["model=my_model.py", "device=cpu", "iterations=1", "report=false", "compile=none", "turns=6"]
    assert main([*given, "compared=2", "library.use=false", "least_gain=0", "stop_after=extract"]) == 0
    [folder] = (place / "outputs" / "optimize").iterdir()
    before = (folder / "profile.json").read_text()
    assert not (folder / "optimized").exists()
    assert main([f"resume={folder}", "stop_after=install"]) == 0
    said = capsys.readouterr().out
    assert (folder / "profile.json").read_text() == before, "a resumed run is not profiled again"
    assert "same outputs on 2 sets of weights and inputs" in said and "with the kernels" in said
    verification = Verification.read(folder / "verification.json")
    assert verification.passes and verification.ways == ["eager", "rewritten", "optimized"]
    readme = (folder / "optimized" / "README.md").read_text()
    assert "| `kernels/1_addmm.py` (triton) | addmm | 1 | fc |" in readme
    assert json.loads((folder / "kernels.json").read_text())["1_addmm"]["low"] == 1.5


@pytest.mark.slow
def test_the_budget_names_what_it_limits(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["model=my_model.py", "device=cpu", "budget.seconds=60", "budget.evaluations=8", "compared=2"]
    config = compose_config(OptimizeConfig, expand(given).overrides)
    run = OptimizeRun(folder=place, config=config, shared=(), console=Console())
    made = traced(Mlp(), rand(4, 8))
    lines = [*budget_lines(run, profile_of(made), [made], Extraction(problems=[], left_out={}))]
    assert lines[0].startswith("budget.evaluations=8, budget.seconds=60.0 limits the search alone")
    assert "library kernels" in lines[1] and "compare the model on 2 sets" in lines[2]
    config.stop_after = "search"
    config.budget.seconds = config.budget.evaluations = None
    assert len([*budget_lines(run, profile_of(made), [made], Extraction(problems=[], left_out={}))]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            ("return [torch.rand(rows, 8)]", "return [torch.rand(rows, 8), torch.Generator()]"),
            "the argument how is a Generator; a recorded call may contain tensors, numbers",
        ),
        (("return self.drop(self.fc(x))", "return {'made': map(abs, [x])}"), "its output['made'] is a map"),
        (
            ("self.drop = ", "self.fc.register_forward_hook(print)\n        self.drop = "),
            "the module fc has the hook print, which would not run; remove it first",
        ),
        (
            (
                "return self.drop(self.fc(x))",
                "self.n = getattr(self, 'n', 0) + 1; return self.fc(x) * self.n",
            ),
            "its forward changes the attribute n",
        ),
        (
            (
                "self.drop = ",
                "self.register_forward_pre_hook(lambda _, given: (given[0] * 2,))\n        self.drop = ",
            ),
            "its forward as code has different results: other numbers",
        ),
    ],
)
def test_what_cannot_be_installed_is_refused_before_the_search(
    changed: tuple[str, str],
    why: str,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def searched(*given: object) -> None:
        raise AssertionError("nothing is evaluated")

    monkeypatch.setattr(optimize, "find_kernels", searched)
    source = SOURCE.replace("forward(self, x)", "forward(self, x, how=None)").replace(*changed)
    (place / "my_model.py").write_text(source)
    given = ["model=my_model.py", "device=cpu", "iterations=1", "report=false", "library.use=false"]
    assert main([*given, "budget.evaluations=99"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"search.optimize: model=my_model.py: kernels cannot be installed: {why}")


SHAPES = "model.shapes=[{sizes:{rows:2},weight:3},{sizes:{rows:5}}]"


@pytest.mark.slow
def test_several_shapes_from_the_profile_to_the_package(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimize, "find_kernels", own_code)
    monkeypatch.setattr(stages, "VerificationTask", UNPLACED)
    given = ["model=my_model.py", SHAPES, "device=cpu", "iterations=1", "report=false", "compile=none"]
    given += ["compared=1", "turns=6", "library.use=false", "least_gain=0", "stop_after=extract"]
    assert main(given) == 0
    [folder] = (place / "outputs" / "optimize").iterdir()
    profile = read_profile(folder)
    assert profile.weights == {"rows=2": 0.75, "rows=5": 0.25}
    assert profile.wall_ms == pytest.approx(sum(each.weight * each.wall_ms for each in profile.shapes))
    extraction = Extraction.read(folder / "extraction.json")
    [addmm] = [each for each in extraction.problems if each.target == "addmm"]
    assert [each.shape for each in addmm.places] == [0, 1]
    assert "of the calls" in capsys.readouterr().out
    assert main([f"resume={folder}", "stop_after=install"]) == 0
    found = Verification.read(folder / "verification.json")
    assert found.passes and found.shapes == profile.weights and found.calls["1_addmm"] == 2
    assert "same outputs on 1 sets of weights and inputs at each of 2 shapes" in capsys.readouterr().out
    text = (folder / "optimized" / "README.md").read_text()
    assert "It has code for these input shapes: rows=2 (75% of the calls), rows=5" in text
    assert "at rows=5, 25% of the calls:" in text
    assert main([f"resume={folder}", "model.shapes=[]"]) == 2
    assert "model.shapes differs from that of" in capsys.readouterr().err


@pytest.mark.slow
def test_a_folder_of_an_earlier_version_resumes_with_one_shape(place: Path) -> None:
    """Also where the file has cases, which the earlier version ignored."""
    cases = '\n\ndef get_cases():\n    return [{"sizes": {"rows": 2}}, {"sizes": {"rows": 5}}]\n'
    (place / "my_model.py").write_text(SOURCE + cases)
    given = ["model=my_model.py", "device=cpu", "iterations=1", "report=false", "library.use=false"]
    assert main([*given, "stop_after=profile"]) == 0
    [folder] = (place / "outputs" / "optimize").iterdir()
    fields = json.loads((folder / "profile.json").read_text())
    assert [each["name"] for each in fields.pop("shapes")] == ["rows=2", "rows=5"]
    (folder / "profile.json").write_text(json.dumps(fields))
    assert main([f"resume={folder}"]) == 0, "it has the shapes of the folder"
    assert read_profile(folder).weights == {"": 1.0}


@pytest.mark.slow
def test_without_a_page(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["model=level1/softmax", "model.sizes.batch=2", "device=cpu", "iterations=1", "report=false"]
    assert main([*given, "library.use=false", "out=there", "stop_after=profile"]) == 0
    [folder] = (place / "there" / "optimize").iterdir()
    assert not (folder / "profile.html").exists()
    assert "_softmax" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "source"),
    [
        ("my_model.py", FileModel(path="my_model.py")),
        ("a/b/net.py", FileModel(path="a/b/net.py")),
        ("level1/softmax", ProblemModel(name="level1/softmax")),
        ("of_mine.net", ModuleModel(name="of_mine.net")),
        ("transformers/GPT2Model", Transformers(name="GPT2Model")),
        ("torchvision/resnet18", Torchvision(name="resnet18")),
        ("diffusers/UNet2DModel", Diffusers(name="UNet2DModel")),
    ],
)
def test_a_model_by_its_name(model: str, source: ModelSource) -> None:
    config = compose_config(OptimizeConfig, expand([f"model={model}"]).overrides)
    assert source_of(config.model) == source


def test_the_settings_of_a_model() -> None:
    given = ["model=transformers/GPT2Model", "model.config.n_layer=2", "model.batch=3", "model.sequence=9"]
    config = compose_config(OptimizeConfig, expand([*given, "model.inputs.token_type_ids=[3,9]"]).overrides)
    assert source_of(config.model) == Transformers(
        name="GPT2Model", config={"n_layer": 2}, batch=3, sequence=9, inputs={"token_type_ids": [3, 9]}
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["model=other.py"], "the reference other.py cannot be read"),
        (["model=transfomers/GPT2Model"], "unknown collection transfomers; did you mean transformers?"),
        (["model=no_such_module"], "needs no_such_module, which is not installed"),
        (["model=level1/softmx"], "level1/softmx"),
        (
            ["model=my_model.py", "model.sizes.raws=2"],
            "no module global raws to override; did you mean rows?",
        ),
        (["model=my_model.py", "stop_after=end"], "stop_after is end; it must be one of profile, extract"),
        (["model=my_model.py", "turns=2"], "turns is 2"),
        (
            ["model=my_model.py", "backward=true", "training.optimizer=adam"],
            "training.optimizer is adam; it must be one of adamw, sgd; did you mean adamw?",
        ),
        (["model=my_model.py", "training.steps=0"], "training.steps is 0; it must be a whole number"),
        (
            ["model=my_model.py", "training.learning_rate=0"],
            "training.learning_rate is 0.0; it must be above",
        ),
        (
            ["model=my_model.py", "training.autocast=float16"],
            "training.autocast is float16; it must be bfloat16",
        ),
        (["model=my_model.py", "training.autocast=bfloat16"], "training.autocast needs backward=true"),
        (
            ["model=my_model.py", "backward=true", "budget.evaluations=9"],
            "backward=true: the playbook writes no backward passes; set proposer=llm or mailbox",
        ),
        (["model=my_model.py", "budget.evaluations=0"], "budget.evaluations is 0; it must be positive"),
        (["model=my_model.py", "compile=no"], "compile is no; it must be one of none, default, all"),
        (["resume=nowhere"], "resume=nowhere: no optimization in this folder"),
        (["model=my_model.py", "dtype=float61"], "dtype is float61; it must be one of float64"),
        (["model=my_model.py", "iterations=0"], "iterations is 0"),
        (["model=my_model.py", "device=gpu"], "device is gpu; it must be one of auto, cpu, cuda"),
        (["model=my_model.py", "itterations=3"], "unknown key itterations; did you mean iterations?"),
        (
            ["model=my_model.py", "model.batch=2"],
            "model=my_model.py has no key model.batch; it has model.calls, model.shapes, model.sizes",
        ),
        (
            ["model=my_model", "model.shapes=[{batch:2}]"],
            "model=my_model has no key model.shapes; it has none",
        ),
        (
            ["model=my_model.py", "model.shapes=[{batch:2}]"],
            "model.shapes has the unknown key batch; known are sizes, weight",
        ),
        (["model=my_model.py", "model.shapes=[{weight:0}]"], "model.shapes has the weight 0"),
        (["model=my_model.py", "model.calls=[{},{weight:0}]"], "model.calls has the weight 0"),
        (["model=my_model.py", "model.calls=[{},{scale:2}]"], "the forward has no parameter scale"),
        (
            ["model=my_model.py", "model.shapes=[{weight:1},{}]"],
            "has the case as it is twice",
        ),
        (["model=my_model.py", "model.shapes=[{sizes:{raws:2}}]"], "no module global raws to override"),
        (
            ["model=level1/softmax", "model.shapes=[{sizes:{batc:2}}]"],
            "global batc to override; did you mean",
        ),
        (["model=my_model", "model.batch=2"], "model=my_model has no key model.batch; it has none"),
        (["model=my_model.py", "model.bach=2"], "unknown key model.bach; did you mean model.batch?"),
        ([], "model.name is not set"),
    ],
)
def test_a_wrong_call_is_one_line_and_writes_nothing(
    arguments: list[str], why: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["device=cpu", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert why in said and "\n" not in said
    assert not (place / "outputs").exists()


@pytest.mark.slow
def test_a_failing_model_is_a_one_line_error(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "my_model.py").write_text(SOURCE.replace("return self.drop", "return self.dorp"))
    assert main(["model=my_model.py", "device=cpu"]) == 2
    assert "model=my_model.py fails: AttributeError: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_forward_that_counts_is_refused_before_the_search(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = "self.fc.calls = getattr(self.fc, 'calls', 0) + 1\n        return self.drop"
    (place / "my_model.py").write_text(SOURCE.replace("return self.drop", counts))
    given = ["model=my_model.py", "device=cpu", "iterations=1", "report=false", "library.use=false"]
    assert main([*given, "budget.evaluations=4"]) == 2
    why = "kernels cannot be installed: its forward changes the attribute fc.calls"
    assert why in capsys.readouterr().err
    [folder] = (place / "outputs" / "optimize").iterdir()
    assert not (folder / "extraction.json").exists()
