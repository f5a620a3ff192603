"""Many runs at once, as data frames."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from evaluators.base.usage_error import UsageError
from ideatree.runs import open_run
from search.recordings.archives import SUFFIX
from search.recordings.verdicts import recording_folder
from search.report.corpus_frames import CorpusFrames, corpus_frames


def open_corpus(runs: str | Path | Iterable[str | Path]) -> CorpusFrames:
    """Opens several runs. Needs pandas.

    Args:
        runs: run folders, packed runs or names of shipped recordings. A folder, or the name of a folder of
            shipped recordings such as `language_model`, stands for every run in it.

    Returns:
        Their frames, one below the other, with the runs' names as the first level of the index.

    Raises:
        UsageError: there is no run, or two have the same name.
        OSError: a run is missing.
        JournalError: a journal is not valid.
    """
    if isinstance(runs, str | Path):
        places = _runs_in(recording_folder(str(runs)))
    else:
        places = [Path(each) for each in runs]
    names = [each.name.removesuffix(SUFFIX) for each in places]
    if not places:
        raise UsageError(f"{runs}: there are no runs")
    if same := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two runs have the name {same}")
    return corpus_frames({name: open_run(each).frames() for name, each in zip(names, places, strict=True)})


def _runs_in(folder: Path) -> list[Path]:
    folders = (each.parent for each in folder.glob("*/journal.jsonl"))
    return sorted([*folders, *folder.glob(f"*{SUFFIX}")])
