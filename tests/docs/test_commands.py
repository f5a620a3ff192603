"""Every command that the pages show: run where it takes seconds, otherwise composed (`--cfg job`)."""

from __future__ import annotations

import json
import logging
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ideatree.commands import COMMANDS
from ideatree.commands import main as ideatree
from tests.docs.pages import PAGES, ROOT, blocks, examples
from tests.ideatree.test_interface import REFERENCE, SOURCE
from tests.search.compare.compared import compared
from tests.search.optimize.profiling.test_profile import SOFTMAX, profile

NAMES = {module: name for name, (module, _) in COMMANDS.items()}
MODULE = r"(?:\.venv/bin/)?python -m ([\w.]+)"
LINE = re.compile(rf"^\s*(?:\$ )?(?:{MODULE}|ideatree(?: (\w+))?)((?: .*)?)$", re.MULTILINE)
QUICK = ("prompt", "list", "show", "report")
"""Commands that can be run as they stand, whatever their arguments."""
STAMP = "2026-01-31_12-00-00"


def shown() -> list[str]:
    """The commands of the pages, as arguments of `ideatree`, each once."""
    found: dict[str, None] = {}
    for page in PAGES:
        for module, name, rest in LINE.findall(re.sub(r"\\\n\s*", "", blocks(page))):
            command = NAMES.get(module) if module else name
            if command in COMMANDS:
                found[f"{command} {rest.partition(' #')[0].strip()}"] = None
    return list(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place as the pages describe it: files of one's own, and the folder of a run."""
    place = tmp_path_factory.mktemp("user")
    (place / "my_model.py").write_text(REFERENCE + "\ncolumns = 3\n")
    (place / "my_kernel.py").write_text(SOURCE)
    for path, text in examples().items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    run = place / "outputs/level1/conv2d" / STAMP
    shutil.copytree(ROOT / "search/recordings/conv2d_h200", run)
    call = {"id": "000012", "system": "You write kernels.", "prompt": "# Task\n\nWrite one."}
    call |= {"purpose": "code", "about": "round 1"}
    config = run / ".hydra/config.yaml"
    config.write_text(config.read_text() + "\nrun: null\n")  # as if an agent could go on with it, too
    compare = compared(place / "outputs/compare" / STAMP, seeds=3) / ".hydra"
    compare.mkdir()
    (compare / "overrides.yaml").write_text("- problem=level1/softmax\n")
    campaign = place / "outputs/campaign" / STAMP / ".hydra"
    campaign.mkdir(parents=True)
    (campaign / "overrides.yaml").write_text("- suite=shipped\n- budget.evaluations=10\n")
    optimize = place / "outputs/optimize" / STAMP / ".hydra"
    optimize.mkdir(parents=True)
    (optimize / "overrides.yaml").write_text("- model.name=my_model.py\n- device=cpu\n")
    (optimize.parent / "profile.json").write_text(json.dumps(profile(SOFTMAX).to_json()))
    (run / "model_calls.jsonl").write_text(json.dumps(call) + "\n")
    return place


def test_the_pages_show_every_command() -> None:
    assert {command.partition(" ")[0] for command in shown()} == set(COMMANDS)


@pytest.fixture
def level() -> Iterator[None]:
    """The level of the logs is as before: Hydra's `--info` shows all of them in the process."""
    before = logging.root.level
    yield
    logging.root.setLevel(before)


@pytest.mark.slow
@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("command", shown())
def test_a_command_of_the_pages(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(logging.root, "handlers", [])  # those of another test write where its output went
    name, *arguments = shlex.split(
        command.replace("<date_time>", STAMP).replace("<id>", "softmax/cpp").replace("search/recordings/", "")
    )
    if name not in QUICK and "replay.evaluations=true" not in arguments:
        shows = {"--help", "--cfg", "--info"} & set(arguments)
        arguments += [] if shows else ["--cfg", "job"]
        if "--multirun" in arguments:  # shows the job of each combination, or none
            arguments = [each for each in arguments if each not in ("--multirun", "seed=0,1,2")]
            arguments = [each.partition(",")[0] for each in arguments]
    if (
        (folder / "configs").is_dir()
        and "--config-dir" not in arguments
        and name not in ("show", "list", "report")
    ):
        arguments += ["--config-dir", "configs"]
    status = ideatree([name, *arguments])
    printed = capsys.readouterr()
    assert (status, printed.err) == (0, ""), printed.err
    assert printed.out.strip()


@pytest.mark.slow
def test_every_benchmark_can_be_imported() -> None:
    """They are run by hand, now and then: a name that has moved would go unnoticed."""
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    done = subprocess.run(
        [sys.executable, "-c", code, *names],
        cwd=ROOT / "benchmarks",
        env={"PYTHONPATH": f"{ROOT / 'benchmarks'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
