"""The commands as Hydra applications, called through a shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

ROOT = Path(__file__).parents[3]
REPLAYED = (
    "proposer=replay",
    "replay.run=conv2d_h200",
    "replay.evaluations=true",
    "wandb=off",
    "rounds=3",
)
"""A whole search in two seconds: a shipped recording, found by its name from any folder."""

pytestmark = pytest.mark.slow


def shell(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`ideatree` with these arguments, called in the folder."""
    return subprocess.run(
        [str(Path(sys.executable).parent / "ideatree"), *arguments],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_has_the_groups_and_every_key(tmp_path: Path) -> None:
    done = shell(tmp_path, "run", "--help")
    assert done.returncode == 0
    words = " ".join(done.stdout.split())
    assert "strategy ab_mcts, beam, best_of_n, idea_branching, idea_tree" in words
    assert "problem atrex, attention/biased, attention/packed_sequences" in words
    assert "rounds=13 rounds of the search" in words
    assert "evaluator.thorough_timeout_s=300.0" in words
    chosen = shell(tmp_path, "run", "strategy=beam", "--help").stdout
    assert "strategy.width=" in chosen and "strategy=idea_branching ==" not in chosen


def test_the_config_of_the_job_is_shown_and_nothing_is_written(tmp_path: Path) -> None:
    done = shell(tmp_path, "run", "--cfg", "job", "problem=level1/conv2d", "rounds=3")
    assert done.returncode == 0
    config = OmegaConf.create(done.stdout)
    assert (config.rounds, config.problem.name) == (3, "level1/conv2d")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["all", "defaults", "searchpath", "plugins"])
def test_info(tmp_path: Path, what: str) -> None:
    done = shell(tmp_path, "run", "--info", what, "problem=level1/conv2d")
    assert done.returncode == 0
    assert {"all": "Defaults", "plugins": "Installed Hydra Plugins"}.get(what, "hydra") in done.stdout


def test_the_folder_of_a_run(tmp_path: Path) -> None:
    done = shell(tmp_path, "run", *REPLAYED, "hydra.run.dir=mine/one")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run folder: mine/one\n") == 2, "at the start, and at the end"
    folder = tmp_path / "mine/one"
    assert {"journal.jsonl", "summary.json", "variants", ".hydra"} <= {each.name for each in folder.iterdir()}
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


def test_a_folder_with_a_run_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "sweep" / "mine"
    (folder / ".hydra").mkdir(parents=True)
    for name in ("journal.jsonl", ".hydra/config.yaml", ".hydra/overrides.yaml", ".hydra/hydra.yaml"):
        (folder / name).write_text(f"of {name}")
    before = {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    there, sweep = "hydra.run.dir=sweep/mine", ("hydra.sweep.dir=sweep", "hydra.sweep.subdir=mine")
    names = ("strategies=[idea_branching,puct]", "budget.evaluations=4")
    for call in (
        ("run", "problem=level1/softmax", there),
        ("run", "--multirun", "problem=level1/softmax", "seed=1,2", *sweep),
        ("mcp", "problem=level1/softmax", there),
        ("compare", "problem=level1/softmax", *names, there),
        ("campaign", "suite=shipped", "budget.evaluations=4", there),
        ("optimize", "model=level1/softmax", there),
    ):
        done = shell(tmp_path, *call)
        said = f"search.{call[0]}: sweep/mine already has a run; continue it with resume=sweep/mine\n"
        assert (done.returncode, done.stderr) == (2, said), call
    assert {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()} == before


def test_a_run_resumes_in_its_hydra_folder(tmp_path: Path) -> None:
    shell(tmp_path, "run", *REPLAYED, "hydra.run.dir='one, two and = three'")
    (folder,) = tmp_path.iterdir()
    before = (folder / ".hydra/config.yaml").read_text()
    done = shell(tmp_path, "run", f"resume={folder.name}", "rounds=4")
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 4
    assert (folder / ".hydra/config.yaml").read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == [folder.name]


def test_a_sweep(tmp_path: Path) -> None:
    arguments = (*REPLAYED, "seed=1,2", "hydra.sweep.dir=sweep", "hydra.sweep.subdir=seed_${seed}")
    done = shell(tmp_path, "run", "--multirun", *arguments)
    assert done.returncode == 0, done.stderr
    for seed in (1, 2):
        folder = tmp_path / "sweep" / f"seed_{seed}"
        assert OmegaConf.load(folder / ".hydra/config.yaml").seed == seed
        assert (folder / "summary.json").exists()


def test_a_sweep_has_its_own_folder(tmp_path: Path) -> None:
    assert shell(tmp_path, "run", "-m", *REPLAYED, "seed=1,2").returncode == 0
    (sweep,) = (tmp_path / "outputs/multirun").iterdir()
    assert {each.name for each in sweep.iterdir()} == {"0", "1", "multirun.yaml"}


def test_launchers_are_plugins(tmp_path: Path) -> None:
    done = shell(tmp_path, "run", "--multirun", *REPLAYED, "hydra/launcher=nowhere")
    assert done.returncode == 2
    assert "hydra/launcher" in done.stderr
    assert shell(tmp_path, "run", "-m", *REPLAYED, "hydra/launcher=basic").returncode == 0


def test_a_folder_of_user_configs(tmp_path: Path) -> None:
    (tmp_path / "mine/strategy").mkdir(parents=True)
    (tmp_path / "mine/strategy/wide.yaml").write_text(
        "# Wider.\ndefaults:\n  - idea_branching\n  - _self_\nkeep: 7 # best kernels\n"
    )
    (tmp_path / "mine/quick.yaml").write_text("defaults:\n  - run\n  - _self_\nrounds: 2\n")
    given = ("run", "--config-dir", "mine")
    assert "sequential_revision, wide (default:" in " ".join(shell(tmp_path, *given, "--help").stdout.split())
    done = shell(tmp_path, *given, "--cfg", "job", "problem=level1/conv2d", "strategy=wide")
    assert OmegaConf.create(done.stdout).strategy.keep == 7
    own = shell(tmp_path, *given, "--config-name", "quick", "--cfg", "job", "problem=level1/conv2d")
    assert OmegaConf.create(own.stdout).rounds == 2
    wrong = shell(tmp_path, *given, "problem=level1/conv2d", "strategy=wid")
    assert wrong.stderr.startswith(
        "search.run: unknown strategy wid; did you mean wide?; choose from ab_mcts"
    )


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ideatree ru", "run"),
        ("ideatree run problem=level1/l", "problem=level1/layernorm"),
        ("ideatree run roun", "rounds="),
        ("ideatree run problem=level1/conv2d evaluator.tim", "evaluator.timeout_s="),
        ("ideatree evaluate kern", "kernel="),
        ("ideatree nothing x", ""),
    ],
)
def test_a_shell_completes(tmp_path: Path, line: str, offered: str) -> None:
    done = shell(tmp_path, "-sc", "query=bash", COMP_LINE=line)
    assert (done.returncode, done.stdout.strip()) == (0, offered)


def test_the_completion_script_works_in_bash(tmp_path: Path) -> None:
    script = shell(tmp_path, "-sc", "install=bash").stdout
    assert script.rstrip().endswith("-F hydra_bash_completion ideatree")
    line = "ideatree run rou"
    ask = f'COMP_LINE="{line}" COMP_POINT={len(line)} COMP_CWORD=2\nhydra_bash_completion\necho "$COMPREPLY"'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}"],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "rounds=\n", done.stderr
