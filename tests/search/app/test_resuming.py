"""The configs of older run folders, with today's keys."""

from __future__ import annotations

import shutil
from pathlib import Path

from evaluators.app.command import build
from search.app.resuming import stored_config
from search.proposers.llm.proposer import LLMProposer
from search.run.config import RunConfig

RUN = Path(__file__).parents[1] / "recordings" / "softmax_cpu"


def test_the_proposer_of_an_older_run_has_no_copy_of_history(tmp_path: Path) -> None:
    folder = shutil.copytree(RUN, tmp_path / "run")
    assert (folder / ".hydra" / "config.yaml").read_text().count("history: all") == 2
    stored = stored_config(folder, "resume", RunConfig)
    assert stored.history == "all"
    assert isinstance(build(stored.proposer), LLMProposer)
