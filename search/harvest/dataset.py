"""Writes a dataset for `datasets.load_dataset`: Parquet, JSONL and a card."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.records.problem import content_id
from search.harvest.corpus import OWN_LICENSE
from search.harvest.format import Format
from search.harvest.rows import STRINGS, Column, Row

if TYPE_CHECKING:
    import pyarrow

SPLITS = ("train", "validation", "test")


def split_of(problem_key: str, validation: float, test: float) -> str:
    """The split of a problem. It depends on the key alone, so later harvests do not change it."""
    share = int(content_id("split", problem_key), 16) / 16**12
    return "test" if share < test else "validation" if share < test + validation else "train"


def write(out: Path, format: Format, splits: Mapping[str, Sequence[Row]], notes: Iterable[str]) -> None:
    """Writes the dataset's folder atomically: Parquet at the top, JSONL in `jsonl`. The latter is a separate
    dataset, because the loader accepts one kind of file per folder. Empty splits are left out.

    `notes`: additional paragraphs for the card. Raises OSError.
    """
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema([(column.name, _arrow(column)) for column in format.columns])
    filled = {name: splits[name] for name in SPLITS if splits.get(name)}
    values = {
        name: [{column.name: row.values[column.name] for column in format.columns} for row in rows]
        for name, rows in filled.items()
    }
    texts = {
        name: "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in rows)
        for name, rows in values.items()
    }
    card = _text(format, filled, notes)
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        (part / "jsonl").mkdir()
        for name in filled:
            table = pyarrow.Table.from_pylist(values[name], schema=schema)
            parquet.write_table(table, part / f"{name}.parquet", compression="zstd")
            (part / "jsonl" / f"{name}.jsonl").write_text(texts[name], encoding="utf-8")
        for folder, kind in ((part, "parquet"), (part / "jsonl", "jsonl")):
            front = _front(format, filled, kind, contents=content_id(*texts.values()))
            (folder / "README.md").write_text(front + card, encoding="utf-8")
        part.chmod(0o755)
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _front(format: Format, splits: Mapping[str, Sequence[Row]], kind: str, *, contents: str) -> str:
    """The card's front matter, from which `load_dataset` takes files and types.

    The loader's cache key is the folder's name and this text. Without the hash of the contents it would
    return an earlier harvest for a folder of the same name.
    """
    import yaml

    front = {
        "license": OWN_LICENSE if _licenses(splits) == [OWN_LICENSE] else "other",
        "task_categories": ["text-generation"],
        "tags": ["code", "gpu-kernels", format.name],
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": name, "path": f"{name}.{kind}"} for name in splits],
            }
        ],
        "dataset_info": {
            "description": f"contents {contents}",
            "features": [_feature(column) for column in format.columns],
        },
    }
    return f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n"


def _text(format: Format, splits: Mapping[str, Sequence[Row]], notes: Iterable[str]) -> str:
    """The card, in Markdown."""
    counts = [
        f"| {name} | {len(rows)} | {len({row.problem_key for row in rows})} |"
        for name, rows in splits.items()
    ]
    paragraphs = [
        f"# Kernels: {format.name}",
        format.about,
        "| split | rows | problems |\n|---|---|---|\n" + "\n".join(counts),
        "No problem is in two splits: a hash of the reference without sizes and names decides.",
        f"Licenses of the rows: {', '.join(_licenses(splits))}.",
        *notes,
        "| column | type | meaning |\n|---|---|---|\n" + "\n".join(_lines(format.columns)),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _licenses(splits: Mapping[str, Sequence[Row]]) -> list[str]:
    """The licenses named in the rows, sorted."""
    rows = (row for rows in splits.values() for row in rows)
    return sorted({str(row.values[key]) for row in rows for key in ("reference_license", "kernel_license")})


def _lines(columns: Iterable[Column], prefix: str = "") -> Iterable[str]:
    for column in columns:
        nested = not isinstance(column.type, str)
        kind = "list of records" if nested else column.type
        yield f"| `{prefix}{column.name}` | {kind} | {column.meaning} |"
        if not isinstance(column.type, str):
            yield from _lines(column.type, f"{column.name}.")


def _feature(column: Column) -> dict[str, Any]:
    """A column's type in the card's front matter."""
    if not isinstance(column.type, str):
        return {"name": column.name, "list": [_feature(each) for each in column.type]}
    if column.type == STRINGS:
        return {"name": column.name, "list": "string"}
    return {"name": column.name, "dtype": column.type}


def _arrow(column: Column) -> pyarrow.DataType:
    import pyarrow

    if not isinstance(column.type, str):
        return pyarrow.list_(pyarrow.struct([(each.name, _arrow(each)) for each in column.type]))
    if column.type == STRINGS:
        return pyarrow.list_(pyarrow.string())
    return pyarrow.type_for_alias(column.type)
