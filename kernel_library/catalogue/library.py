"""The library: the shipped kernels, and those that searches and users add to a root folder.

An entry is a folder with `kernel.py`, `card.yaml`, `reference.py` (unless it computes a shipped problem), and
optionally `shapes.csv` with measurements at many shapes. Shipped entries are in `seeds/<op>/<name>/`, added
ones in `<root>/<id>/`. Files are written atomically and the card last; a folder without a card is not an
entry. A killed run therefore leaves no partial entry, and several runs can add entries at once.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path, PurePosixPath
from typing import TypeVar

from evaluators.base.nearest import nearest
from evaluators.records.problem import Problem
from kernel_library.catalogue import cards, shape_table
from kernel_library.catalogue.entry import AtShape, Entry, Hit, RepeatedMeasurement, architecture_of
from kernel_library.catalogue.meaning import name_implies
from kernel_library.catalogue.retrieval import bests, rank
from kernel_library.catalogue.store import Store
from kernel_library.catalogue.traits import Traits, traits_of

logger = logging.getLogger(__name__)

SEEDS = Path(__file__).parents[1] / "seeds"
Loaded = TypeVar("Loaded")


class FolderLibrary:
    """A library of kernels in a root folder, in addition to the shipped ones.

    Args:
        root: a local folder, which need not exist, or a URL that fsspec opens (`s3://bucket/library`).
        seeds: the folder of the shipped kernels; None leaves them out.
        min_speedup: the lower end of an added kernel's 95 % speedup interval must exceed this; 0 accepts
            every correct kernel.
        today: the clock for the dates of measurements.

    Raises:
        ValueError: fsspec cannot open the root, or `min_speedup` is negative.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        seeds: str | Path | None = SEEDS,
        min_speedup: float = 1.0,
        today: Callable[[], date] = date.today,
    ) -> None:
        if not min_speedup >= 0:
            raise ValueError(f"library.min_speedup is {min_speedup}; it must not be negative")
        self._min_speedup = min_speedup
        self._own = Store(str(root))
        self._shipped = None if seeds is None else Store(str(seeds))
        self._today = today

    def lookup(self, problem: Problem, k: int, environment: Mapping[str, str] | None = None) -> list[Hit]:
        """Finds entries that help with a problem.

        Args:
            problem: the problem.
            k: the most entries to return.
            environment: the target device as in an evaluation: `device`, and `architecture` for a GPU.

        Returns:
            Entries with reasons, the most helpful first.

        Raises:
            OSError: the root cannot be read.
        """
        entries = self.entries()
        return rank(problem, traits_of(problem), entries, environment or {})[:k] if entries else []

    def best(self, problem: Problem, environment: Mapping[str, str]) -> Entry | None:
        """The fastest entry measured on this problem and on the architecture of `environment`; None if there
        is none. Raises OSError if the root cannot be read."""
        architecture = architecture_of(problem.device, environment.get("architecture", ""))
        entries = {each.id: each for each in self.entries() if each.runs_on(architecture)}
        found = bests([*entries.values()]).get((problem.id, architecture))
        return None if found is None else entries[found]

    def entries(self) -> list[Entry]:
        """Every entry, the shipped ones first, with its checks and its shape table, in which the root's rows
        replace shipped ones. An unreadable entry is logged and left out. Raises OSError if the root cannot be
        read."""
        stores = [(each, each.paths()) for each in (self._shipped, self._own) if each is not None]
        tables = [_read_tables(*each) for each in stores]
        checks = _read_checks(*stores[-1])
        return [
            replace(
                entry,
                checks=tuple(checks.get(entry.id, ())),
                at_shapes=shape_table.merged(*(table.get(entry.id, ()) for table in tables)),
            )
            for store in stores
            for entry in _read(*store)
        ]

    def named(self, id: str) -> Entry:
        """The entry whose id is or begins with `id`.

        Raises:
            LookupError: no entry or several match; the message names the nearest.
            OSError: the root cannot be read.
        """
        return find(id, self.entries())

    def refusal(self, entry: Entry) -> str | None:
        """Why `add` would refuse the entry, in one line with a remedy; None if it would accept it."""
        timing = entry.measurements[0].evaluation.timing
        assert timing is not None, "a measurement is correct"
        if timing.speedup_low > self._min_speedup:
            return None
        interval = f"[{timing.speedup_low:.2f}, {timing.speedup_high:.2f}]"
        return (
            f"its speedup of {timing.speedup:.2f} {interval} is not significantly above "
            f"{self._min_speedup:.2f}; set library.min_speedup=0 to add it anyway"
        )

    def add(self, entry: Entry) -> bool:
        """Adds an entry to the root, if it is new there and fast enough.

        Empty fields are filled in: those that follow from the reference, the date, and the command that
        repeats the measurement.

        Returns:
            Whether the entry was added.

        Raises:
            OSError: the root cannot be written.
        """
        if self.refusal(entry) is not None or self._own.exists(f"{entry.id}/card.yaml"):
            return False
        entry = self._complete(entry)
        self._own.write(f"{entry.id}/kernel.py", entry.kernel.source)
        self._own.write(f"{entry.id}/reference.py", entry.measurements[0].problem.source)
        self._own.write(f"{entry.id}/card.yaml", cards.dump(entry))
        return True

    def save_check(self, entry: Entry, check: RepeatedMeasurement) -> None:
        """Writes a check into the entry's folder of the root, replacing an earlier one for the same problem
        and device. Raises OSError."""
        device = re.sub(r"\W+", "-", check.device).strip("-")
        self._own.write(f"{entry.id}/verified/{device}-{check.problem_id}.yaml", cards.dump_check(check))

    def save_shapes(self, id: str, rows: Sequence[AtShape]) -> None:
        """Writes measurements into the shape table of the entry's folder of the root, replacing earlier ones
        of the same shapes and device. Raises OSError."""
        place = f"{id}/shapes.csv"
        known = _read_tables(self._own, [place]).get(id, ())
        self._own.write(place, shape_table.dump(shape_table.merged(known, rows)))

    def _complete(self, entry: Entry) -> Entry:
        first, *others = entry.measurements
        traits = traits_of(first.problem)
        measured_on = () if first.architecture in ("", "cpu") else (first.architecture,)
        measurement = replace(
            first,
            inputs=first.inputs or traits.inputs,
            date=first.date or self._today().isoformat(),
            command=first.command or f"python -m kernel_library.verify entry={entry.id}",
        )
        return replace(
            entry,
            measurements=(measurement, *others),
            op=entry.op or traits.op,
            parts=entry.parts or traits.parts,
            dtypes=entry.dtypes or (first.problem.dtype,),
            shapes=entry.shapes or traits.inputs,
            architectures=entry.architectures or measured_on,
            function=entry.function or _function(entry.kernel.source, first.problem, traits),
        )


def find(id: str, entries: Sequence[Entry]) -> Entry:
    """The entry with this id, or the only one whose id begins with it. Raises LookupError with the
    nearest."""
    found = [entry for entry in entries if entry.id == id] or [e for e in entries if e.id.startswith(id)]
    if len(found) == 1:
        return found[0]
    if found:
        raise LookupError(f"entry {id} is ambiguous; it matches {', '.join(each.id for each in found)}")
    near = nearest(id, [entry.id for entry in entries])
    hint = f"; did you mean {near}?" if near else "; ideatree list shows all entries"
    raise LookupError(f"unknown entry {id}{hint}")


def open_library(root: str | Path = "outputs/library") -> FolderLibrary:
    """Opens the library of the shipped kernels and those added to a root.

    Args:
        root: a folder, which need not exist, or a URL that fsspec opens (`s3://bucket/library`).

    Returns:
        The library.

    Raises:
        ValueError: fsspec cannot open the root.
    """
    return FolderLibrary(root)


def _read(store: Store, paths: Sequence[str]) -> list[Entry]:
    folders = [PurePosixPath(each).parent for each in paths if PurePosixPath(each).name == "card.yaml"]
    texts = store.read(str(f / name) for f in folders for name in ("card.yaml", "kernel.py", "reference.py"))
    found = []
    for folder in folders:
        try:
            entry = cards.load(
                texts[str(folder / "card.yaml")],
                source=texts[str(folder / "kernel.py")],
                reference=texts.get(str(folder / "reference.py")),
                name=str(folder) if len(folder.parts) > 1 else "",
            )
            if entry.id != str(folder):
                raise ValueError(f"its content has the id {entry.id}")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("library entry %s cannot be read: %s: %s", folder, type(error).__name__, error)
        else:
            found.append(entry)
    return found


def _read_checks(store: Store, paths: Sequence[str]) -> dict[str, list[RepeatedMeasurement]]:
    """The checks, by entry id."""
    places = [each for each in paths if PurePosixPath(each).match("verified/*.yaml")]
    found: dict[str, list[RepeatedMeasurement]] = {}
    for place, check in _loaded(store, places, cards.load_check):
        found.setdefault(str(place.parents[1]), []).append(check)
    return found


def _read_tables(store: Store, paths: Sequence[str]) -> dict[str, tuple[AtShape, ...]]:
    """The shape tables, by entry id."""
    places = [each for each in paths if each.endswith("/shapes.csv")]
    return {str(place.parent): table for place, table in _loaded(store, places, shape_table.load)}


def _loaded(
    store: Store, places: Sequence[str], load: Callable[[str], Loaded]
) -> Iterator[tuple[PurePosixPath, Loaded]]:
    """The files with their contents; an invalid one is logged and left out."""
    for place, text in store.read(places).items():
        try:
            yield PurePosixPath(place), load(text)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("%s cannot be read: %s: %s", place, type(error).__name__, error)


def functions_of(source: str) -> set[str]:
    """The names of the top-level functions in Python source. Raises SyntaxError."""
    return {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def _function(source: str, problem: Problem, traits: Traits) -> str:
    """The function with the operation's name, or `ModelNew`, if the name fully describes what it computes; ""
    otherwise, or if `ModelNew` takes arguments or has tensors."""
    if not (traits.bare and name_implies(traits.op, problem)):
        return ""
    return traits.op if traits.op in functions_of(source) else "ModelNew"
