"""The words of a command line: whatever path a user types, the command gets that path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from evaluators.app.command import CommandCall, compose_config
from evaluators.app.config import expand_choices, kinds_of
from evaluators.app.words import for_hydra, items_of, overrides, quoted, text_of, without_key
from evaluators.audit.__main__ import AuditConfig
from evaluators.evaluate.__main__ import EvaluateConfig
from evaluators.score import __main__ as score
from evaluators.trace.__main__ import TraceConfig
from ideatree.problems import problem_overrides
from kernel_library.export import __main__ as export
from search.app.resuming import value_of
from search.harvest.__main__ import HarvestConfig
from search.optimize import __main__ as optimize
from search.report import __main__ as report
from search.run.config import RunConfig

TEXTS = [
    *("/tmp/a b(c),d=e'f\"", "/tmp/Ärger/ü 研究.py", "a,b", "a=b", "a(b", "a)b", "[a]", "[a", "{a", "{a: b}"),
    *(
        "it's",
        "'a'b",
        'say "x"',
        "back\\slash",
        "ends\\",
        "a\\'b",
        "a\\\\b c",
        "a#b",
        "a;b&c",
        "a\tb",
        "a\nb",
    ),
    *("1e3", "007", "1_000", "true", "nan", "range(1,3)", "glob(*)", "choice(a,b)", "a ", "~a", "a:b", "%41"),
    *("$x", "`x`", "!x", "<x>", "x?", "*", "a|b", "^", "-x", "+x", "@x", "level_1 (1).py", "caf\u0065\u0301"),
    "broken \udce9",  # a name that is not UTF-8
]
SOME = [TEXTS[0], TEXTS[1], "[a], b (1)", "1e3"]


def read(config: type[Any], key: str, words: Sequence[str]) -> object:
    return OmegaConf.select(compose_config(config, words), key)


@pytest.mark.parametrize("text", TEXTS)
def test_hydra_reads_what_was_typed(text: str) -> None:
    for word in (f"run={text}", f"run={quoted(text)}"):
        (given,) = for_hydra([word], kinds_of(score.ScoreConfig))
        assert text_of(given.partition("=")[2]) == text
        assert for_hydra([given], kinds_of(score.ScoreConfig)) == [given], "a second pass changes nothing"
    assert items_of(",".join(map(quoted, [text, "b", text]))) == [quoted(text), "b", quoted(text)]


@pytest.mark.slow
@pytest.mark.parametrize("text", SOME)
@pytest.mark.parametrize(
    ("config", "key", "more"),
    [
        (EvaluateConfig, "kernel", ["problem=level1/softmax"]),
        (EvaluateConfig, "problem.path", ["problem=file", "kernel=none"]),
        (TraceConfig, "model", []),
        (TraceConfig, "out", ["model=x"]),
        (AuditConfig, "out", ["suite=shipped"]),
        (score.ScoreConfig, "run", []),
        (score.ScoreConfig, "operators", []),
        (score.ScoreConfig, "exclude", []),
        (RunConfig, "out", ["problem=level1/softmax"]),
        (RunConfig, "replay.run", ["problem=level1/softmax"]),
        (RunConfig, "library.root", ["problem=level1/softmax"]),
        (export.LibraryExportConfig, "to", ["layout=package"]),
        (optimize.OptimizeConfig, "model.name", []),
    ],
)
def test_every_command_gets_the_path(config: type[Any], key: str, more: list[str], text: str) -> None:
    number = text == "1e3" and key in ("problem.path", "library.root")  # keys of any type
    assert read(config, key, [*more, f"{key}={text}"]) == (1000.0 if number else text)


@pytest.mark.slow
@pytest.mark.parametrize("text", SOME[:3])
@pytest.mark.parametrize(
    ("expand", "word", "key", "config"),
    [
        (score.expand, "{}", "run", score.ScoreConfig),
        (report.expand, "{}", "run", report.ReportConfig),
        (export.expand, "to={}", "to", export.LibraryExportConfig),
        (optimize.expand, "model={}", "model.name", optimize.OptimizeConfig),
    ],
)
def test_words_that_a_command_rewrites(
    expand: Callable[[Sequence[str]], CommandCall],
    word: str,
    key: str,
    config: type[Any],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    place = text.replace("/", ":")  # one name
    (tmp_path / place).mkdir()
    more = ["format=package"] if config is export.LibraryExportConfig else []
    assert read(config, key, expand([*more, word.format(place)]).overrides) == place


@pytest.mark.slow
@pytest.mark.parametrize("text", SOME[:3])
def test_the_file_of_a_problem(text: str) -> None:
    file = f"{text}.py"
    for words in ([f"problem={file}"], [f"problem={quoted(file)}"], problem_overrides(Path(file))):
        assert read(EvaluateConfig, "problem.path", [*words, "kernel=none"]) == file
    assert value_of([f"resume={text}"], "resume") == value_of([f"resume={quoted(text)}"], "resume") == text


@pytest.mark.slow
def test_lists_of_paths() -> None:
    runs = ["/tmp/a b(c)", "d", "e=f"]
    for words in ([f"runs=[{','.join(runs)}]"], overrides({"runs": runs})):
        found: Any = read(HarvestConfig, "runs", ["format=sft", "out=x", *words])
        assert list(found) == runs
    found = read(AuditConfig, "only", ["suite=shipped", "only=[23,a(b),'c,d',1e3]"])
    assert list(found) == ["23", "a(b)", "c,d", "1e3"]


def test_a_sweep_over_paths() -> None:
    kinds = kinds_of(EvaluateConfig)

    def swept(word: str) -> list[str]:
        (found,) = for_hydra([word], kinds, sweep=True)
        return [text_of(each) for each in items_of(found.partition("=")[2])]

    assert swept("kernel=a (1).py,b.py,'c,d.py'") == ["a (1).py", "b.py", "c,d.py"]
    assert swept("problem.path=a (1).py,b.py") == ["a (1).py", "b.py"]
    assert for_hydra(["kernel=choice(a,b)"], kinds, sweep=True) == ["kernel=choice(a,b)"]
    assert for_hydra(["repeat=range(1,3)"], kinds, sweep=True) == ["repeat=range(1,3)"]
    words = expand_choices(["problem=a (1).py,b.py"], EvaluateConfig, sweep=True)
    assert words == ["problem=file", "problem.path='a (1).py',b.py"]


def test_values_that_are_no_texts_stay() -> None:
    words = ["repeat=3", "json=true", "problem=level1/softmax", "ray.address=null", "problem.sizes.n=8"]
    words += ["kernel=${oc.env:HOME}/x.py", "~pool", "evaluator.plan={a:1}", "kernel='quoted (1)'", "nothing"]
    assert for_hydra(words, kinds_of(EvaluateConfig)) == words


def test_words_without_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=3").mkdir()
    assert without_key(["lr=3", "lr=4", "b c"], "run") == ["run='lr=3'", "lr=4", "run=b c"]
