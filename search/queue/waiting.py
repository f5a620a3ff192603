"""What each search that uses a queue waits for: devices and, if its run folder is known, answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from evaluators.queue.archive import PendingRequests
from evaluators.queue.requests import DeviceRequest
from search.app.registry import read_yaml
from search.models.providers.mailbox import Mailbox
from search.run.queued_search import NAME


@dataclass(frozen=True, kw_only=True)
class WaitingSearch:
    """One search: its requests, the number of those that a worker holds, its run folder, and the files of its
    open questions."""

    name: str
    requests: tuple[DeviceRequest, ...] = ()
    held: int = 0
    folder: Path | None = None
    questions: tuple[Path, ...] = ()

    def lines(self) -> list[str]:
        """The search in words."""
        counts = Counter(each.operation.value for each in self.requests)
        what = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        seconds = sum(each.cost_s for each in self.requests)
        head = self.name if self.folder is None else f"{self.name} ({self.folder})"
        found = [f"{head}:"]
        if self.requests:
            found.append(f"    awaiting a device: {what}; {self.held} with a worker; about {seconds:.0f} s")
        if self.questions:
            found.append(f"    awaiting an answer ({len(self.questions)}):")
            found += [f"        {each}" for each in self.questions]
        return found if found[1:] else [*found, "    nothing awaits a device or an answer"]


def waiting_searches(pending: PendingRequests, runs: Path) -> list[WaitingSearch]:
    """The searches with requests in the queue, and those with a run folder below `runs`, by name. Raises
    OSError, and UsageError for a config that is damaged."""
    by_search: dict[str, list[DeviceRequest]] = {}
    for each in pending.requests:
        by_search.setdefault(each.search, []).append(each)
    folders = _run_folders(runs)
    return [
        WaitingSearch(
            name=name,
            requests=tuple(by_search.get(name, ())),
            held=sum(each.id in pending.held for each in by_search.get(name, ())),
            folder=folders.get(name),
            questions=tuple(_open_questions(folders[name])) if name in folders else (),
        )
        for name in sorted({*by_search, *folders})
    ]


def total(requests: Iterable[DeviceRequest]) -> str:
    """How much there is to do, in words."""
    found = list(requests)
    searches, seconds = len({each.search for each in found}), sum(each.cost_s for each in found)
    return f"requests: {len(found)}, searches: {searches}, device seconds: about {seconds:.0f}"


def _run_folders(runs: Path) -> Mapping[str, Path]:
    """The run folders below a folder, by the names of their searches."""
    return {each.read_text(encoding="utf-8").strip(): each.parent for each in sorted(runs.rglob(NAME))}


def _open_questions(run: Path) -> list[Path]:
    config = OmegaConf.create(read_yaml(run / ".hydra" / "config.yaml", dict))
    mailbox = Mailbox(folder=OmegaConf.select(config, "proposer.models.mailbox.folder"))
    mailbox.begin(run)
    return mailbox.open_questions()
