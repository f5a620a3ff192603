"""Cards: everything about an entry except its source, as YAML. People read them, and write those of the
shipped entries.

The cost and the single samples of a measurement are left out; the run has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem
from evaluators.reference.loading import PROBLEMS
from kernel_library.catalogue.entry import Against, Entry, Lineage, Measurement, RepeatedMeasurement

LEFT_OUT = ("kernel_samples_ms", "eager_samples_ms", "stages_s", "lease", "device_s", "build_s")
LISTS = ("parts", "tags", "dtypes", "shapes", "architectures")


def dump(entry: Entry) -> str:
    """The text of an entry's card."""
    card = {
        "op": entry.op,
        **{name: [*getattr(entry, name)] for name in LISTS},
        "language": entry.kernel.language,
        "function": entry.function,
        "licence": entry.licence,
        "notes": entry.notes,
        "lineage": asdict(entry.lineage),
        "measurements": [_measurement(each) for each in entry.measurements],
    }
    return _to_yaml(_without_empty(card))


def renew(text: str, measurement: Measurement) -> str:
    """The text of a shipped card with the measurement for the same problem and architecture replaced. The
    text above the measurements, which people write, stays unchanged."""
    written, _, _ = text.partition("\nmeasurements:")
    card = _from_yaml(text)
    kept = [_read_measurement(each, None) for each in card.get("measurements", ())]
    same = measurement.problem.id, measurement.architecture
    kept = [each for each in kept if (each.problem.id, each.architecture) != same]
    renewed = [_measurement(each) for each in (*kept, measurement)]
    return f"{written.rstrip()}\n{_to_yaml(_without_empty({'measurements': renewed}))}"


def load(text: str, *, source: str, reference: str | None = None, name: str = "") -> Entry:
    """The entry with this card and kernel. `reference` is the source of its reference; None if the card names
    a shipped problem. Raises ValueError, TypeError or KeyError for an invalid card."""
    card = _from_yaml(text)
    lineage = card.pop("lineage", {})
    lists: dict[str, Any] = {key: tuple(map(str, card.pop(key, ()))) for key in LISTS}
    return Entry(
        name=name,
        kernel=Kernel(source=source, language=card.pop("language")),
        lineage=Lineage(**{**lineage, "ideas": tuple(lineage.get("ideas", ()))}),
        measurements=tuple(_read_measurement(each, reference) for each in card.pop("measurements")),
        **lists,
        **card,
    )


def dump_check(check: RepeatedMeasurement) -> str:
    """The text of a check by `verify`."""
    return _to_yaml(_without_empty(asdict(check) | {"evaluation": check.evaluation.to_json()}))


def load_check(text: str) -> RepeatedMeasurement:
    """The inverse of `dump_check`. Raises ValueError, TypeError or KeyError."""
    check = _from_yaml(text)
    return RepeatedMeasurement(
        **{**check, "date": str(check.get("date", "")), "evaluation": _evaluation(check["evaluation"])}
    )


def _measurement(measurement: Measurement) -> dict[str, Any]:
    problem = asdict(measurement.problem)
    del problem["source"]
    problem["sizes"] = problem.pop("overrides")
    return {
        "problem": problem,
        "inputs": [*measurement.inputs],
        "date": measurement.date,
        "command": measurement.command,
        "against": None if measurement.against is None else asdict(measurement.against),
        "evaluation": measurement.evaluation.to_json(),
    }


def _read_measurement(data: Mapping[str, Any], reference: str | None) -> Measurement:
    problem = dict(data["problem"])
    if reference is None:
        try:
            reference = (PROBLEMS / f"{problem['name']}.py").read_text()
        except OSError as error:
            raise ValueError(f"unknown reference {problem['name']}") from error
    return Measurement(
        problem=Problem.from_json({"source": reference, "overrides": problem.pop("sizes", {}), **problem}),
        evaluation=_evaluation(data["evaluation"]),
        inputs=tuple(map(str, data.get("inputs", ()))),
        date=str(data.get("date", "")),
        command=data.get("command", ""),
        against=Against(**data["against"]) if "against" in data else None,
    )


def _evaluation(data: Mapping[str, Any]) -> Evaluation:
    environment = {key: str(value) for key, value in data.get("environment", {}).items()}  # 9.0 is a string
    nothing = {"timing": None, "correctness": None}
    cases = [
        {**each, "evaluation": {**nothing, "environment": {}, **each["evaluation"]}}
        for each in data.get("cases", ())
    ]
    return Evaluation.from_json({**nothing, **data, "environment": environment, "cases": cases})


def _without_empty(value: Any) -> Any:
    """The value without empty fields and those of LEFT_OUT."""
    if isinstance(value, dict):
        kept = {key: _without_empty(each) for key, each in value.items() if key not in LEFT_OUT}
        return {key: each for key, each in kept.items() if each not in (None, "", [], {})}
    if isinstance(value, list | tuple):
        return [_without_empty(each) for each in value]
    return str(value) if isinstance(value, str) else value  # converts members of StrEnum


def _to_yaml(data: Any) -> str:
    import yaml

    return yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False, width=100, allow_unicode=True)


def _from_yaml(text: str) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise ValueError("a card must be a mapping")
    return data
