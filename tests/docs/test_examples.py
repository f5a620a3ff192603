"""The examples of docs/extending do what the pages say of them."""

from __future__ import annotations

import asyncio
import inspect
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from evaluators.reference.loading import load_problem
from search.records.model_calls import CallFailed, Cause, Limits, Price, Purpose, Question
from search.records.run_state import RunState
from search.records.tree import Expansion, Idea
from tests.docs.pages import examples, load
from tests.search.strategies import test_contract

QUESTION = Question(
    purpose=Purpose.CODE, system="Be brief.", prompt="A kernel, please.", schema={"type": "object"}
)
ECHO = "import sys; print(sys.stdin.read())"


@pytest.fixture
def example(tmp_path: Path) -> Any:
    """Loads an example of the pages as the module that it would be."""

    def loaded(path: str) -> ModuleType:
        file = tmp_path / Path(path).name
        file.write_text(examples()[path])
        return load(file, f"example_{file.stem}")

    return loaded


@pytest.mark.parametrize("path", [path for path in examples() if path.startswith("configs/")])
def test_configs_name_a_class_of_the_pages_and_its_arguments(path: str, example: Any) -> None:
    config = yaml.safe_load(examples()[path])
    module, _, name = config.pop("_target_").rpartition(".")
    found = getattr(example(module.replace(".", "/") + ".py"), name)
    inspect.signature(found).bind(**config)


@pytest.mark.slow
@pytest.mark.parametrize("explore", [0.0, 0.5, 1.0])
def test_the_strategy_keeps_the_contract(explore: float, example: Any) -> None:
    strategy = example("search/strategies/exploring.py").Exploring(ideas=5, branch=2, explore=explore)
    asked = [test for name, test in vars(test_contract).items() if name.startswith("test_")]
    parts = [test for test in asked if "strategy" in inspect.signature(test).parameters]
    assert len(parts) >= 5
    for test in parts:
        test(strategy=strategy, ideas=5)


def test_the_strategy_refuses_what_is_no_probability(example: Any) -> None:
    with pytest.raises(ValueError, match=r"exploring.explore is 2"):
        example("search/strategies/exploring.py").Exploring(ideas=1, branch=1, explore=2)


def test_the_proposer_gives_each_file_once(tmp_path: Path, example: Any) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.py").write_text(f'"""Idea {name}.\n\nMore."""\n\nclass ModelNew: ...\n')
    module = example("search/proposers/folder.py")

    async def run() -> list[tuple[str, int]]:
        proposer = module.Folder(str(folder))
        proposer.begin(SimpleNamespace(state=RunState()))
        given: list[tuple[str, int]] = []
        for number in (1, 2, 3):
            expansion = Expansion(seed=None, ideas=2, variants=4, round=number)
            ideas: list[Idea] = await proposer.propose(None, expansion, [], random.Random(0))
            for idea in ideas:
                kernels = [k async for k in proposer.implement(None, idea, None, 4, [], random.Random(0))]
                again = [k async for k in proposer.implement(None, idea, None, 4, kernels, random.Random(0))]
                assert (len(kernels), again) == (1, [])
                assert idea.text in kernels[0].source
                given.append((idea.text, idea.round))
        return given

    assert asyncio.run(run()) == [("Idea a.", 1), ("Idea b.", 1), ("Idea c.", 2)]
    with pytest.raises(ValueError, match=r"there is no .py file"):
        module.Folder(str(tmp_path / "nothing"))


def provider(example: Any, *command: str, timeout_s: float = 20.0) -> Any:
    limits = Limits(timeout_s=timeout_s)
    return example("search/models/providers/command.py").Command(
        command=command, price=Price(), limits=limits
    )


def test_the_provider_passes_the_prompt_on(example: Any) -> None:
    answer = asyncio.run(provider(example, sys.executable, "-c", ECHO).complete(QUESTION))
    assert all(part in answer.text for part in ("Be brief.", "A kernel, please.", '{"type": "object"}'))
    assert answer.usage is None


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("import sys; sys.exit('no tokens left')", Cause.SERVER_ERROR),
        ("import sys; sys.stdin.read()", Cause.EMPTY),
        ("import sys, time; sys.stdin.read(); time.sleep(60)", Cause.TIMEOUT),
    ],
)
def test_the_provider_says_why_a_call_failed(program: str, cause: Cause, example: Any) -> None:
    timeout_s = 0.5 if cause is Cause.TIMEOUT else 20.0
    with pytest.raises(CallFailed) as caught:
        asyncio.run(provider(example, sys.executable, "-c", program, timeout_s=timeout_s).complete(QUESTION))
    assert caught.value.cause is cause


def test_the_provider_says_which_program_is_missing(example: Any) -> None:
    assert provider(example, sys.executable).refusal() is None
    assert "no-such-program" in provider(example, "no-such-program").refusal()


def test_the_problem_is_a_reference(tmp_path: Path) -> None:
    file = tmp_path / "my_model.py"
    file.write_text(examples()["my_model.py"])
    problem = load_problem("file", path=str(file), sizes={"columns": 8})
    assert problem.name == "file/my_model"
