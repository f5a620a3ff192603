"""What happens around a search: a full disk, a reader that goes, an encoding that lacks characters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from search.records.journal import replay
from search.records.run_state import rebuild

pytestmark = pytest.mark.slow

SEARCH = "problem=landscape proposer=landscape wandb=off library.use=false budget.evaluations=400"
FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
from search.run.__main__ import main
sys.exit(main())
"""


def run(
    folder: Path, shell: str = "{}", program: str = "-m search.run", **environment: str
) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} {program} {SEARCH} report=false out={folder}"
    line = f"set -o pipefail; {shell.format(command)}"
    found = {**os.environ, **environment}
    return subprocess.run(["bash", "-c", line], env=found, capture_output=True, text=True, errors="replace")


def test_a_full_disk_ends_a_search_with_one_line_and_it_resumes(tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text(FULL)
    ended = run(tmp_path / "outputs", program=str(tmp_path / "full.py"), PYTHONPATH=str(Path.cwd()))
    (path,) = (tmp_path / "outputs").rglob("journal.jsonl")
    assert (ended.returncode, ended.stderr) == (1, f"search.run: {path}: File too large\n")
    assert "Traceback" not in ended.stdout
    before = rebuild(replay(path)).evaluations
    assert 0 < before < 400
    again = subprocess.run(
        [sys.executable, "-m", "search.run", f"resume={path.parent}"], capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert rebuild(replay(path)).evaluations == 400


def test_a_search_goes_on_without_its_reader(tmp_path: Path) -> None:
    ended = run(tmp_path, "{} | head -3")
    assert (ended.returncode, ended.stderr) == (141, "")
    (path,) = tmp_path.rglob("journal.jsonl")
    assert rebuild(replay(path)).evaluations == 400
    assert (path.parent / "summary.json").exists()


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_search_ends_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    ended = run(tmp_path, PYTHONIOENCODING=encoding)
    assert (ended.returncode, ended.stderr) == (0, "")
