"""The command line: wrong input gives one line with the nearest choice, and every shipped config works."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from evaluators.app.command import build, compose_config, one_of, positive
from evaluators.app.config import config_folder
from evaluators.audit.__main__ import AuditConfig
from evaluators.base.usage_error import UsageError
from evaluators.device.settings import Settings
from evaluators.records.problem import Problem
from evaluators.records.timing import Plan
from evaluators.rewards.__main__ import RewardServerConfig
from search.campaign.__main__ import CampaignConfig
from search.harvest.__main__ import HarvestConfig
from search.run.config import RunConfig

CONV = "problem=level1/conv2d"
CONFIGS = Path(__file__).parents[3] / "configs"
OPTIONS = sorted(
    (group.name, str(file.relative_to(group).with_suffix("")))
    for group in CONFIGS.iterdir()
    if group.is_dir()
    for file in group.rglob("*.yaml")
)
OF_HARVEST = ("format", "decontaminate")
OF_OTHERS = {
    "format": HarvestConfig,
    "decontaminate": HarvestConfig,
    "suite": AuditConfig,
    "scheduler": CampaignConfig,
    "reward": RewardServerConfig,
}
"""Groups that other commands choose from; a run has all the others."""
PROBLEMS = [name for group, name in OPTIONS if group == "problem"]
WITH_A_NAME = (
    *("atrex", "file", "flashinfer", "kernelbench", "kernelbench_hard"),
    *("operators", "recorded", "robust_kbench", "solexec"),
)
"""Problems that need more than their config's name."""


def refusal(*overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        compose_config(RunConfig, overrides)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def test_the_configs_of_the_checkout_are_found() -> None:
    assert config_folder() == CONFIGS


@pytest.mark.parametrize(
    ("value", "nearest"),
    [
        ("level1/conv2", "level1/conv2d"),
        ("conv2d", "level1/conv2d"),
        ("softmx", "level1/softmax"),
        ("level2/matmul", "level1/matmul"),
        ("fil", "file"),
    ],
)
def test_an_unknown_problem(value: str, nearest: str) -> None:
    message = refusal(f"problem={value}")
    assert message.startswith(f"unknown problem {value}; did you mean {nearest}?")
    assert all(name in message for name in PROBLEMS)


def test_an_unknown_problem_without_a_similar_one() -> None:
    message = refusal("problem=zzzzzzzz")
    assert "did you mean" not in message
    assert "choose from atrex, attention/biased, attention/packed_sequences" in message


@pytest.mark.slow
@pytest.mark.parametrize("value", ["false", "5", "1.5", "null"])
def test_a_choice_that_is_not_text(value: str) -> None:
    assert refusal(CONV, f"library={value}").startswith(f"unknown library {value}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "key", "nearest"),
    [
        ("branchs=8", "branchs", "branch"),
        ("rouds=1", "rouds", "rounds"),
        ("evaluator.timeouts=3", "evaluator.timeouts", "evaluator.timeout_s"),
        ("evaluator.plan.block=3", "evaluator.plan.block", "evaluator.plan.block_ms"),
        ("problm=level1/conv2d", "problm", "problem"),
        ("budget.second=3", "budget.second", "budget.seconds"),
    ],
)
def test_an_unknown_key(override: str, key: str, nearest: str) -> None:
    assert refusal(CONV, override) == f"unknown key {key}; did you mean {nearest}?"


@pytest.mark.slow
@pytest.mark.parametrize("group", sorted({group for group, _ in OPTIONS} - {"problem", *OF_OTHERS}))
def test_an_unknown_option_of_a_group(group: str) -> None:
    message = refusal(CONV, f"{group}=zzzz")
    assert message.startswith(f"unknown {group} zzzz")
    assert all(name in message for other, name in OPTIONS if other == group)


def test_the_nearest_option_of_a_group_is_suggested() -> None:
    assert refusal(CONV, "pool=locl").startswith("unknown pool locl; did you mean local?")


@pytest.mark.slow
def test_no_problem() -> None:
    message = refusal()
    assert message.startswith("problem is not set; give problem=…, one of ")
    assert all(name in message for name in PROBLEMS)


@pytest.mark.slow
def test_a_file_problem_without_its_path() -> None:
    assert refusal("problem=file") == "problem.path is not set; give it as problem.path=…"


@pytest.mark.parametrize("override", ["rounds", "level1/conv2d", "rounds:3"])
def test_an_override_without_a_value(override: str) -> None:
    assert refusal(CONV, override) == f"{override!r} is not of the form key=value"


@pytest.mark.parametrize("override", ["rounds=[1", "rounds={", "rounds=${nowhere}", "out=${"])
def test_a_value_that_cannot_be_read(override: str) -> None:
    refusal(CONV, override)


@pytest.mark.slow
def test_values_arrive_with_their_types() -> None:
    config = compose_config(
        RunConfig, [CONV, "rounds=3", "evaluator.plan.block_ms=2.5", "wandb=off", "out=/x/y"]
    )
    assert (config.rounds, config.evaluator.plan.block_ms, config.out) == (3, 2.5, "/x/y")


@pytest.mark.slow
def test_sizes_are_open_ended() -> None:
    config = compose_config(
        RunConfig,
        [CONV, "problem.sizes.batch=2", "problem.cpu_sizes.height=9", "problem.sizes.out_channels=4"],
    )
    problem: Problem = build(config.problem, device="cpu")
    assert problem.overrides == {"batch": 2, "height": 9, "out_channels": 4}
    together = ["problem.sizes={batch:2,out_channels:4}", "problem.cpu_sizes.height=9"]
    assert compose_config(RunConfig, [CONV, *together]).problem == config.problem


@pytest.mark.slow
def test_a_size_that_the_reference_lacks_is_refused_with_the_nearest() -> None:
    config = compose_config(RunConfig, [CONV, "problem.sizes.batchs=2"])
    with pytest.raises(UsageError, match="no module global batchs to override; did you mean batch") as caught:
        build(config.problem, device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("problem.dtype=float8", "problem.dtype is 'float8'"),
        ("problem.tolerance=loose", "problem.tolerance is 'loose'"),
        ("problem.path=/nowhere/model.py", "/nowhere/model.py cannot be read"),
    ],
)
def test_a_constructors_refusal_is_one_line(override: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(compose_config(RunConfig, [CONV, override]).problem, device="cpu")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "override", ["evaluator.timeout_s=0", "evaluator.memory_gb=-1", "evaluator.max_calls=0"]
)
def test_limits_of_the_evaluator_are_positive(override: str) -> None:
    key, _, value = override.partition("=")
    with pytest.raises(UsageError, match=f"{key} is {value}; it must be positive"):
        build(compose_config(RunConfig, [CONV, override]).evaluator)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [["problem=file", "problem.path='{}'"], ["problem={}"]])
def test_a_file_problem(tmp_path: Path, overrides: list[str]) -> None:
    path = tmp_path / "of (mine), this"
    path.mkdir()
    path /= "mine.py"
    path.write_text("N = 2\nclass Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n")
    overrides = [*(each.format(path) for each in overrides), "problem.sizes.N=3"]
    problem: Problem = build(compose_config(RunConfig, overrides).problem, device="cpu")
    assert (problem.name, problem.overrides) == ("file/mine", {"N": 3})


NEEDED = {
    ("problem", "file"): ["problem.path=model.py"],
    ("problem", "atrex"): ["problem.name=atrex/rms_norm"],
    ("problem", "kernelbench_hard"): ["problem.name=kernelbench_hard/01_fp8_gemm"],
    ("suite", "folder"): ["suite.path=references"],
    ("problem", "flashinfer"): ["problem.name=flashinfer/gemm_n4096_k4096"],
    ("problem", "solexec"): ["problem.name=solexec/rmsnorm_h4096"],
    ("problem", "kernelbench"): ["problem.name=kernelbench/level1/23"],
    ("problem", "robust_kbench"): ["problem.name=robust_kbench/layernorm"],
    ("problem", "operators"): ["problem.name=operators/opinfo/aten.addmm.default"],
    ("problem", "recorded"): ["proposer=recorded", "proposer.runs=[conv2d_h200]"],
    ("proposer", "recorded"): ["proposer.runs=[conv2d_h200]"],
    ("pool", "folder"): ["pool.path=queue"],
    ("llm", "local"): ["llm.local.model=served"],
    ("proposer", "replay"): [f"replay.run={Path(__file__).parents[2] / 'search/recordings/softmax_cpu'}"],
}
"""Keys without a default."""


def chosen(group: str, name: str) -> list[str]:
    if group in OF_HARVEST:
        return ["out=new", *(["format=sft"] if group != "format" else []), f"{group}={name}"]
    if group == "reward":
        return ["http=127.0.0.1:8000", f"{group}={name}"]
    if group == "scheduler":
        return ["suite=shipped", f"{group}={name}"]
    others = [CONV] if group not in ("problem", "suite") else []
    return [*others, f"{group}={name}", *NEEDED.get((group, name), [])]


@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_shipped_option_composes(group: str, name: str) -> None:
    config = compose_config(OF_OTHERS.get(group, RunConfig), chosen(group, name))
    assert not OmegaConf.missing_keys(config)
    target = config[group].get("_target_")
    if target is not None:
        module, _, attribute = target.rpartition(".")
        assert callable(getattr(importlib.import_module(module), attribute))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROBLEMS if name not in WITH_A_NAME])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_shipped_problem_instantiates(name: str, device: str) -> None:
    problem = build(compose_config(RunConfig, [f"problem={name}"]).problem, device=device)
    assert isinstance(problem, Problem)
    assert problem.device == device
    family, _, last = name.partition("/")
    if family == "training":  # some are other references with other rules
        assert problem.name.endswith(f"/{last}") and problem.backward
    else:
        assert problem.name == name and not problem.backward


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "name"),
    [(group, name) for group, name in OPTIONS if group in ("strategy", "proposer")],
)
def test_every_shipped_strategy_and_proposer_instantiates(group: str, name: str) -> None:
    assert build(compose_config(RunConfig, chosen(group, name))[group]) is not None


@pytest.mark.slow
def test_the_evaluators_settings_instantiate_as_they_are_written() -> None:
    settings = build(compose_config(RunConfig, [CONV]).evaluator)
    assert settings == Settings()
    assert isinstance(settings.plan, Plan)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for group, name in OPTIONS if group == "pool"])
def test_every_pool_takes_what_the_command_gives_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    config = compose_config(RunConfig, chosen("pool", name)).pool
    module, _, attribute = config["_target_"].rpartition(".")
    host = getattr(importlib.import_module(module), attribute)

    def note(self: object, *, settings: Settings, on_gpu: bool, **more: Any) -> None:
        given.update(settings=settings, on_gpu=on_gpu, **more)

    parameters = set(host.__init__.__annotations__)
    assert {"settings", "on_gpu"} <= parameters
    monkeypatch.setattr(host, "__init__", note)
    assert isinstance(build(config)(settings=Settings(), on_gpu=False), host)
    assert set(given) <= parameters


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "many", None])
def test_counts_are_whole_and_positive(value: Any) -> None:
    with pytest.raises(UsageError, match="rounds is"):
        positive(OmegaConf.create({"rounds": value}), "rounds")
    positive(OmegaConf.create({"rounds": 1}), "rounds")


def test_one_of_several_words() -> None:
    config = OmegaConf.create({"device": "cud"})
    with pytest.raises(
        UsageError, match="device is cud; it must be one of auto, cuda, cpu; did you mean cuda"
    ):
        one_of(config, "device", ("auto", "cuda", "cpu"))
    one_of(OmegaConf.create({"device": "cpu"}), "device", ("auto", "cuda", "cpu"))


def test_a_missing_class_is_named() -> None:
    config = OmegaConf.create({"_target_": "search.strategies.nowhere.Nobody"})
    with pytest.raises(UsageError, match=r"No module named 'search.strategies.nowhere'"):
        build(config)
