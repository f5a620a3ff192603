"""The library: the kernels that ship with the package, and those that searches and users add to a root of
their own.

An entry is a folder with `kernel.py`, `card.yaml`, `reference.py` unless it computes a shipped problem, and
`shapes.csv` where it was measured at many shapes: `seeds/<op>/<name>/` in the package, `<root>/<id>/` for
what is added. Each file appears whole or not at all, and the card last: a folder without a card is no entry.
So a run that is killed leaves none by half, and several may add at once.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path, PurePosixPath

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


class FolderLibrary:
    """Kernels that outlive the runs that found them. `root` is a local folder or any URL that fsspec opens
    (`s3://bucket/library`); `seeds` the folder of the shipped ones, None for none. The speedup of what is
    added must surely be above `min_speedup`: the lower end of its 95 % interval is. 0 takes every kernel.

    Raises ValueError for a root that nothing here opens, and for a negative `min_speedup`.
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
        """At most k entries that help with the problem, the most helpful first. `environment` is that of the
        device that is searched for, as an evaluation has it: `device`, and `architecture` for a GPU. Raises
        OSError when the root cannot be read."""
        entries = self.entries()
        return rank(problem, traits_of(problem), entries, environment or {})[:k] if entries else []

    def best(self, problem: Problem, environment: Mapping[str, str]) -> Entry | None:
        """The fastest kernel that was measured on this very problem on such a device; None where there is
        none. Raises OSError when the root cannot be read."""
        architecture = architecture_of(problem.device, environment.get("architecture", ""))
        entries = {each.id: each for each in self.entries() if each.runs_on(architecture)}
        found = bests([*entries.values()]).get((problem.id, architecture))
        return None if found is None else entries[found]

    def entries(self) -> list[Entry]:
        """Every entry, the shipped ones first, each with what `verify` found of it and with its table of
        shapes, in which the root's rows replace shipped ones. One that cannot be read is logged and left
        out. Raises OSError when the root cannot be read."""
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
        """The entry with this id, or the one whose id begins so (see `find`). Raises OSError when the root
        cannot be read."""
        return find(id, self.entries())

    def refusal(self, entry: Entry) -> str | None:
        """Why the entry is not taken in, in one line that says what would help; None where it is."""
        timing = entry.measurements[0].evaluation.timing
        assert timing is not None, "a measurement is correct"
        if timing.speedup_low > self._min_speedup:
            return None
        interval = f"[{timing.speedup_low:.2f}, {timing.speedup_high:.2f}]"
        return (
            f"its speedup of {timing.speedup:.2f} {interval} is not surely above {self._min_speedup:.2f}; "
            "library.min_speedup=0 takes it all the same"
        )

    def add(self, entry: Entry) -> bool:
        """Whether the entry is new to the user's root and fast enough to be taken in. What can be read off
        its reference, the date and the command that measures it again are filled in where they are empty.
        Raises OSError when the root cannot be written."""
        if self.refusal(entry) is not None or self._own.exists(f"{entry.id}/card.yaml"):
            return False
        entry = self._complete(entry)
        self._own.write(f"{entry.id}/kernel.py", entry.kernel.source)
        self._own.write(f"{entry.id}/reference.py", entry.measurements[0].problem.source)
        self._own.write(f"{entry.id}/card.yaml", cards.dump(entry))
        return True

    def keep(self, entry: Entry, check: RepeatedMeasurement) -> None:
        """Writes what `verify` found of the entry into its folder of the user's root, in place of what was
        found before for the same problem on the same device. Raises OSError."""
        device = re.sub(r"\W+", "-", check.device).strip("-")
        self._own.write(f"{entry.id}/verified/{device}-{check.problem_id}.yaml", cards.dump_check(check))

    def keep_shapes(self, id: str, rows: Sequence[AtShape]) -> None:
        """Writes what the entry with this id took at some shapes into the table of its folder of the user's
        root, in place of what that says of the same shapes on the same device. Raises OSError."""
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
    """The entry with this id, or the only one whose id begins so. Raises LookupError, with the nearest."""
    found = [entry for entry in entries if entry.id == id] or [e for e in entries if e.id.startswith(id)]
    if len(found) == 1:
        return found[0]
    if found:
        raise LookupError(f"entry {id} is not the only one; there are {', '.join(each.id for each in found)}")
    near = nearest(id, [entry.id for entry in entries])
    hint = f"; did you mean {near}?" if near else "; python -m kernel_library.list lists them"
    raise LookupError(f"unknown entry {id}{hint}")


def open_library(root: str | Path = "outputs/library") -> FolderLibrary:
    """The shipped kernels, and those that were added to `root`: a folder, which need not be there, or any URL
    that fsspec opens."""
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
                raise ValueError(f"its content gives the id {entry.id}")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("library entry %s cannot be read: %s: %s", folder, type(error).__name__, error)
        else:
            found.append(entry)
    return found


def _read_checks(store: Store, paths: Sequence[str]) -> dict[str, list[RepeatedMeasurement]]:
    """By the entry's id."""
    places = [each for each in paths if PurePosixPath(each).match("verified/*.yaml")]
    found: dict[str, list[RepeatedMeasurement]] = {}
    for place, text in store.read(places).items():
        try:
            found.setdefault(str(PurePosixPath(place).parents[1]), []).append(cards.load_check(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("%s cannot be read: %s: %s", place, type(error).__name__, error)
    return found


def _read_tables(store: Store, paths: Sequence[str]) -> dict[str, tuple[AtShape, ...]]:
    """By the entry's id."""
    found = {}
    for place, text in store.read(each for each in paths if each.endswith("/shapes.csv")).items():
        try:
            found[str(PurePosixPath(place).parent)] = shape_table.load(text)
        except (ValueError, TypeError, KeyError) as error:
            logger.warning("%s cannot be read: %s: %s", place, type(error).__name__, error)
    return found


def functions_of(source: str) -> set[str]:
    """The names of the plain functions that Python source defines. Raises SyntaxError."""
    return {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def _function(source: str, problem: Problem, traits: Traits) -> str:
    """The plain function of the operation's name, or `ModelNew`, where the name says what it computes; ""
    where it does not, or where `ModelNew` takes or holds something."""
    if not (traits.bare and name_implies(traits.op, problem)):
        return ""
    return traits.op if traits.op in functions_of(source) else "ModelNew"
