"""Class names in stored configs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hydra.utils import get_object
from omegaconf import OmegaConf

from search.app.registry import by_name, by_path, paths, read_config

OLD = """
problem: {_target_: evaluators.reference.load_problem, name: level1/softmax}
strategy: {_target_: search.strategies.idea_branching.IdeaBranching}
evaluator:
  _target_: evaluators.worker.Settings
  plan: {_target_: evaluators.timing.Plan}
pool: {_target_: evaluators.cluster.RayHost}
proposer: {_target_: theirs.proposer.Mine, models: [{_target_: search.llms.openai.OpenAI}]}
wandb: false
"""


def test_names_are_unique_and_resolve() -> None:
    assert all(callable(get_object(path)) for path in paths().values())
    assert Counter(path.rpartition(".")[2] for path in paths().values()).most_common(1)[0][1] == 1


def test_by_path_undoes_by_name() -> None:
    config = {"a": [{"_target_": paths()["IdeaBranching"], "keep": 3}], "b": {"_target_": "theirs.Own"}}
    named = by_name(config)
    assert named == {"a": [{"_target_": "IdeaBranching", "keep": 3}], "b": {"_target_": "theirs.Own"}}
    assert by_path(named) == config


def test_an_older_folder_is_migrated_once_and_keeps_a_backup(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(OLD)
    migrated = read_config(file)
    assert migrated["problem"]["_target_"] == "load_problem"
    assert migrated["evaluator"] == {"_target_": "Settings", "plan": {"_target_": "Plan"}}
    assert migrated["pool"]["_target_"] == "RayHost"
    assert migrated["proposer"] == {"_target_": "theirs.proposer.Mine", "models": [{"_target_": "OpenAI"}]}
    assert migrated["wandb"] == {"mode": "off"}
    backup = tmp_path / "config.yaml.backup"
    assert backup.read_text() == OLD
    assert OmegaConf.to_container(OmegaConf.load(file)) == migrated
    backup.unlink()
    assert read_config(file) == migrated
    assert not backup.exists()


def test_a_read_only_folder_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(OLD)
    (tmp_path / "config.yaml.backup").mkdir()  # even root cannot copy over it
    assert read_config(file)["pool"]["_target_"] == "RayHost"
    assert file.read_text() == OLD
