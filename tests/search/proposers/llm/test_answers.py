from __future__ import annotations

import json

import pytest

from search.proposers.llm.answers import ideas_schema, read_ideas, read_kernel
from search.records.tree import Category
from tests.search.fakes import ideas_answer

SCHEMA = ideas_schema("seed1", ["entry1"])
KERNEL = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"


def fenced(code: str, language: str = "python") -> str:
    return f"```{language}\n{code.rstrip()}\n```\n"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: text,
        lambda text: fenced(text + "\n", "json"),
        lambda text: f"Gladly! Here they are:\n{text}\nGood luck.",
        lambda text: f"{fenced('x = 1')}\n{fenced(text + chr(10), 'json')}",
    ],
)
def test_ideas_are_found_wherever_the_json_stands(wrap: object) -> None:
    assert callable(wrap)
    text = wrap(ideas_answer("Tile it.", "Fuse\nit.", seed="seed1", category="control flow and loops"))
    first, second = read_ideas(text, SCHEMA)
    assert (first.text, first.category, first.expected) == ("Tile it.", Category.CONTROL_FLOW, "faster")
    assert second.text == "Fuse it."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("Sorry, I have no idea.", "is not JSON"),
        ('{"ideas": [{"text": "cut o', "is not JSON"),
        ("[]", "does not follow the schema"),
        ('{"ideas": []}', "has no idea"),
        (ideas_answer(" ", seed="seed1"), "has no idea"),
        (ideas_answer("a", seed="seed1", category="magic"), "ideas/0/category"),
        (ideas_answer("a", seed="another"), "ideas/0/seed"),
        (json.dumps({"ideas": [{"text": "a"}]}), "ideas/0"),
    ],
)
def test_ideas_that_cannot_be_used(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_ideas(text, SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        fenced(KERNEL),
        fenced(KERNEL, ""),
        KERNEL,
        f"First this:\n\n{fenced('pip install x', 'bash')}\nthen\n\n{fenced(KERNEL)}Done.",
        f"{fenced(KERNEL)}\nUse it so:\n\n{fenced('model = ModelNew()')}",
        f"```python\n{KERNEL}",  # the fence was never closed
        f"{fenced(KERNEL.replace('pass', 'first = 1'))}\nBetter:\n{fenced(KERNEL)}",
    ],
)
def test_the_kernel_is_found(text: str) -> None:
    kernel = read_kernel(text)
    assert (kernel.source, kernel.language) == (KERNEL, "cpp")


def test_the_language_is_that_of_the_code() -> None:
    assert read_kernel(fenced("import triton\n" + KERNEL)).language == "triton"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no code"),
        ("I cannot help with that.", "not Python"),
        (fenced("class Model: pass\n"), "no class ModelNew"),
        (fenced("class ModelNew:\n    def forward(self:\n"), "not Python"),
        (fenced("x = 1\n") + fenced("class ModelNew(\n"), "not Python"),
    ],
)
def test_code_that_cannot_be_used(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_kernel(text)
