"""The configs of older run folders, with today's keys."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from evaluators.app.command import build, compose_config, compose_stored
from evaluators.base.usage_error import UsageError
from search.app.resuming import resume_call, stored_config
from search.app.run_folders import keep_config
from search.compare import __main__ as compare
from search.proposers.llm.proposer import LLMProposer
from search.records.events import RunStarted
from search.records.journal import Journal
from search.run import __main__ as run
from search.run.config import RunConfig
from tests.evaluators.scheduler.fake_host import FakeHost

RUN = Path(__file__).parents[1] / "recordings" / "softmax_cpu"


@pytest.mark.slow
def test_the_proposer_of_an_older_run_has_no_copy_of_history(tmp_path: Path) -> None:
    folder = shutil.copytree(RUN, tmp_path / "run")
    assert (folder / ".hydra" / "config.yaml").read_text().count("history: all") == 2
    stored = stored_config(folder, "resume", RunConfig)
    assert stored.history == "all"
    assert isinstance(build(stored.proposer), LLMProposer)


SMALL = (
    "problem=level1/softmax",
    "problem.sizes.batch=4",
    "device=cpu",
    "pool=local",
    "wandb=off",
    "rounds=1",
)
MORE = ("ideas=2", "branch=2", "proposer=llm", "llm=[openai,google]", "wandb.project=mine", "strategy.keep=5")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder whose search has just begun."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    config = compose_config(RunConfig, [*SMALL, *MORE])
    folder.mkdir()
    keep_config(folder, config)
    problem = build(config.problem, device="cpu")
    with Journal(folder / "journal.jsonl") as journal:
        started = {"proposer": "LLMProposer", "strategy": "IdeaBranching", "rounds": 1, "seed": 0}
        journal.append([RunStarted(at_s=0.0, problem=problem, environment={}, **started)])
    return folder


def resumed(folder: Path, *overrides: str) -> DictConfig:
    call = resume_call([f"resume={folder}", *overrides], "resume", RunConfig)
    assert call is not None
    assert call.stored is not None
    return compose_stored(call.stored, [each for each in call.overrides if not each.startswith("hydra")])


@pytest.mark.slow
def test_without_changes_a_resumed_run_has_its_own_config(begun: Path) -> None:
    stored = stored_config(begun, "resume", RunConfig)
    again = resumed(begun)
    stored.resume = str(begun)
    assert again == stored
    assert (again.wandb.project, again.strategy.keep) == ("mine", 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        # choices of groups
        (["wandb=offline"], "wandb.mode", "offline"),
        (["wandb=offline"], "wandb.project", "mine"),
        (["pool=ray"], "pool._target_", "evaluators.scheduler.ray_host.RayHost"),
        (["pool=ray", "ray.address=auto"], "pool.address", "auto"),
        (["library=folder"], "library.kernels._target_", "kernel_library.catalogue.library.FolderLibrary"),
        (["proposer=playbook"], "proposer._target_", "search.proposers.playbook.playbook.Playbook"),
        (["proposer=mailbox"], "proposer.models.mailbox._target_", "search.models.providers.mailbox.Mailbox"),
        (["llm=deepseek"], "proposer.models.deepseek.name", "deepseek/deepseek-flash"),
        (["llm=local", "llm.local.model=mine"], "proposer.models.local.name", "local/mine"),
        (["choice=bandit"], "proposer.choice._target_", "search.proposers.llm.choice.Bandit"),
        (["prompting=no_mistakes"], "proposer.mistakes", False),
        (["prompting.mistakes=false"], "proposer.mistakes", False),
        (["strategy=idea_branching"], "strategy.keep", 5),
        (["strategy=puct"], "strategy._target_", "search.strategies.puct.Puct"),
        (["evaluator=default"], "evaluator.isolation", "limits"),
        (["problem=level1/softmax"], "problem.sizes.batch", 4),
        (["problem=level1/conv2d"], "problem.name", "level1/conv2d"),
        # keys from which others are computed
        (["ideas=3"], "strategy.ideas", 3),
        (["branch=7"], "strategy.branch", 7),
        (["llm.google.model=other"], "proposer.models.google.model", "other"),
        (["library.use=false"], "proposer.library", False),
        (["out=elsewhere"], "library.kernels.root", "elsewhere/library"),
        # plain keys
        (["rounds=4"], "rounds", 4),
        (["wandb.mode=online"], "wandb.mode", "online"),
        (["strategy.keep=2"], "strategy.keep", 2),
    ],
)
def test_what_a_resuming_call_changes(begun: Path, overrides: list[str], key: str, value: object) -> None:
    assert OmegaConf.select(resumed(begun, *overrides), key) == value


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["strategy=beam"], "has strategy IdeaBranching, not Beam; start a new run to change it"),
        (["seed=3"], "has seed 0, not 3; start a new run to change it"),
        (["problem=level1/conv2d"], "has another problem: name level1/softmax, not level1/conv2d; another "),
        (
            ["problem.dtype=bfloat16"],
            "has another problem: dtype float32, not bfloat16; start a",
        ),
        (["problem.sizes.batch=8"], "has another problem: sizes {'batch': 4}, not {'batch': 8}"),
        (["pool=rya"], "unknown pool rya; did you mean ray?; choose from folder, local, ray"),
        (["wandb=maybe"], "unknown wandb maybe; choose from auto, off, offline, online"),
        (["problem.sizes.bach=8"], "did you mean batch?"),
        (["rouns=3"], "unknown key rouns; did you mean rounds?"),
        (["rounds=3", "--multirun"], "continues one run, --multirun starts new ones; leave one out"),
        (["rounds=3,4", "hydra.mode=MULTIRUN"], "continues one run, --multirun starts new ones"),
    ],
)
@pytest.mark.slow
def test_what_cannot_change_is_refused_by_name(
    begun: Path,
    arguments: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evaluators.scheduler.local_host.LocalHost", lambda **_: FakeHost())
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("GEMINI_API_KEY", "none")
    before = (begun / "journal.jsonl").read_bytes()
    assert run.main([f"resume={begun}", *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert (begun / "journal.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        "",
        "problem: [",
        "- a\n- list",
        "problem: level1/conv2d\n",
        "proposer:\n  _target_: Playbook\n",
        "budget: 5\nproblem:\n  name: x\n",
        "\x00",
        "a: \xff",
    ],
)
def test_a_damaged_config_is_one_line(begun: Path, tmp_path: Path, content: str) -> None:
    folder = shutil.copytree(begun, tmp_path / "run")
    (folder / ".hydra" / "config.yaml").write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=r"config.yaml is damaged: ") as refused:
        resumed(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_resumed_comparison_is_not_swept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text("[problem=landscape]")
    assert compare.main([f"resume={tmp_path}", "--multirun", "seeds=3,4"]) == 2
    assert f"resume={tmp_path} continues one run, --multirun starts new ones" in capsys.readouterr().err
