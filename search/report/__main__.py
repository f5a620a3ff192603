"""Writes the report of a run, a comparison, a campaign or a model's profile as one HTML file that needs no
network. The search may still be in progress.

    ideatree report outputs/level1/conv2d/2026-01-31_12-00-00
    ideatree report conv2d_h200 out=conv2d.html
    ideatree report outputs/compare/2026-01-31_12-00-00
    ideatree report outputs/campaign/2026-01-31_12-00-00
    ideatree report outputs/optimize/2026-01-31_12-00-00

The report goes to `report.html` in the folder (`profile.html` for `ideatree optimize`). A shipped recording
can be given by its name. Exit status 0, or 2 for an invalid call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig
from rich.console import Console

from evaluators.app.command import CommandCall, command, log_to, shown
from evaluators.app.config import NO_FOLDER, hydra_settings
from evaluators.app.words import without_key
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from search.app.report_packages import missing_packages
from search.campaign.campaign_page import has_campaign
from search.campaign.campaign_page import write_page as write_campaign
from search.compare.comparison_page import has_comparison
from search.compare.comparison_page import write_page as write_comparison
from search.optimize.profile_page import BadProfile, has_profile
from search.optimize.profile_page import write_page as write_profile
from search.recordings.verdicts import recording_folder, shipped_recordings
from search.records.journal import JOURNAL, JournalError, newest_run_below
from search.report.run_page import write_report


@dataclass
class ReportConfig:
    """The command's config."""

    run: str = option(
        MISSING, "folder of a run, comparison, campaign or profile, or the name of a shipped recording"
    )
    out: str | None = option(
        None, "file to write; null: report.html in the folder, profile.html for a profile"
    )
    hydra: Any = hydra_settings(NO_FOLDER)


def expand(overrides: Sequence[str]) -> CommandCall:
    """Accepts the run without its key. Raises UsageError unless there is exactly one."""
    words = without_key(overrides, "run")
    if sum(each.startswith("run=") for each in words) != 1:
        shipped = ", ".join(shipped_recordings())
        raise UsageError(f"give exactly one run: its folder, or the name of a shipped recording ({shipped})")
    return CommandCall(overrides=words)


@command("search.report", ReportConfig, __doc__, JournalError, expand=expand)
def main(config: DictConfig) -> int:
    """Runs the command; returns its exit status."""
    log_to(Console(stderr=True))
    if missing := missing_packages():
        raise UsageError(f"search.report needs {' and '.join(missing)}; pip install -e '.[report]'")
    folder = recording_folder(config.run)
    try:
        place = _writer(folder, config.run)(folder, Path(config.out) if config.out else None)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}") from error
    except BadProfile as error:
        raise UsageError(f"run={config.run}: {error}") from error
    print(shown(place.resolve()))  # noqa: T201  (the command's output)
    return 0


def _writer(folder: Path, called: str) -> Callable[[Path, Path | None], Path]:
    """The function that writes the report of the folder. Raises UsageError if there is nothing to report."""
    if has_comparison(folder):
        return write_comparison
    if has_campaign(folder):
        return write_campaign
    if (folder / JOURNAL).exists():
        return write_report
    if has_profile(folder):
        return write_profile
    if (folder / "searches.jsonl").exists():
        to_do = f"continue it with ideatree compare resume={folder}"
        raise UsageError(f"run={called}: the comparison has not ended; {to_do}")
    raise UsageError(
        f"run={called}: not the folder of a run (it has no journal.jsonl), comparison, campaign or profile"
        f"{newest_run_below(folder)}"
    )


if __name__ == "__main__":
    sys.exit(main())
