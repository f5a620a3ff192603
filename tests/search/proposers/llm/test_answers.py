"""Answers as models write them: whatever a person could read is read, and what cannot be read is refused with
a reason that the model can act on."""

from __future__ import annotations

import json
import re
import textwrap

import pytest

from evaluators.rewards.completions import read_kernel, read_kernels
from search.proposers.llm.answers import (
    LONGEST_REFLECTION,
    ideas_schema,
    ranking_schema,
    read_ideas,
    read_probes,
    read_ranking,
    read_reflection,
)
from search.records.tree import Category
from tests.search.fakes import ideas_answer

ENTRIES = ["entry1"]
KERNEL = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
TWO = ideas_answer("Tile it.", "Fuse\nit.", seed="seed1", category="control flow and loops")
BARE = json.dumps(json.loads(TWO)["ideas"])
ONE = json.dumps(json.loads(TWO)["ideas"][0])
HEADINGS = (
    "# Ideas\n\n### 1. Tile it.\n\n**Category:** Control flow\n**Variants:**\n1. by 64\n2. by 128\n\n"
    "### 2. Fuse it.\n\n**Category:** Memory access\n\n# Summary\n\n1. Both are good."
)
PLAIN = '{{"text": "{}", "category": "control flow and loops", "expected_effect": "faster"}}'


def fenced(code: str, language: str = "python", fence: str = "```") -> str:
    return f"{fence}{language}\n{code.rstrip()}\n{fence}\n"


def items(*texts: str, sep: str = ", ") -> str:
    return sep.join(PLAIN.format(text) for text in texts)


IDEAS = {
    "bare": TWO,
    "fenced": fenced(TWO, "json"),
    "fenced without a language": fenced(TWO, ""),
    "tildes": fenced(TWO, "json", "~~~"),
    "four backticks": fenced(TWO, "json", "````"),
    "an indented fence": textwrap.indent(fenced(TWO, "json"), "      "),
    "a fence in a list": "1. Here:\n\n" + textwrap.indent(fenced(TWO, "json"), "   "),
    "an unclosed fence": f"```json\n{TWO}",
    "in prose": f"Gladly! Here they are:\n{TWO}\nGood luck.",
    "after code": f"{fenced('x = 1')}\n{fenced(TWO, 'json')}",
    "the last of two drafts": fenced(ideas_answer("Old.", seed=""), "json")
    + "Better:\n"
    + fenced(TWO, "json"),
    "after thoughts": f"<think>Maybe {ideas_answer('no', seed='')}?</think>\n{TWO}",
    "after thoughts whose opening tag is the prompt's": f"Maybe {{}}?\n</think>\n\n{TWO}",
    "a bare list": BARE,
    "a bare list in prose": f"My ideas are: {BARE}. That is all.",
    "a trailing comma": f'{{"ideas": [{items("Tile it.", "Fuse it.")},]}}',
    "a trailing comma in an object": TWO.replace("}", ",}", 1),
    "comments": f'{{"ideas": [ // two\n{items("Tile it.", "Fuse it.")}]}}',
    "single quotes": TWO.replace('"', "'"),
    "a raw line break": f'{{"ideas": [{items("Tile it.")}, {PLAIN.format("Fuse" + chr(10) + "it.")}]}}',
    "an extra key": f'{{"analysis": "memory bound", "ideas": [{items("Tile it.", "Fuse it.")}]}}',
    "an extra key of an idea": TWO.replace('"text"', '"risk": 3, "text"'),
    "another name of the list": f'{{"optimisations": [{items("Tile it.", "Fuse it.")}]}}',
    "another name of the text": TWO.replace('"text"', '"idea"'),
    "another seed": TWO.replace("seed1", "another"),
    "an unknown library entry": TWO.replace('"library_entry": ""', '"library_entry": "made up"'),
    "null for a library entry": TWO.replace('"library_entry": ""', '"library_entry": null'),
    "a number as the effect": TWO.replace('"faster"', "1.3"),
    "another spelling of the category": TWO.replace("control flow and loops", "Control_Flow & Loops"),
    "a bad one between two": f'{{"ideas": [{items("Tile it.")}, {{"category": 3}}, {items("Fuse it.")}]}}',
    "a line for each": "\n".join(json.dumps(each) for each in json.loads(BARE)),
    "a fence for each": "\n".join(fenced(json.dumps(each), "json") for each in json.loads(BARE)),
    "ideas by name": json.dumps(dict(zip("ab", json.loads(BARE), strict=True))),
    "an object within": json.dumps([{"idea": each} for each in json.loads(BARE)]),
    "brackets in the prose": f"See [1] and {{x}}:\n{TWO}\nThat {{is}} [all].",
    "typographic quotation marks": re.sub('"(.*?)"', r"“\1”", TWO),
    "numbered headings": HEADINGS,
    "headings": re.sub("### .. ", "### ", HEADINGS),
    "bold titles": re.sub("### ..(.*)", r"**Idea 7: \1**", HEADINGS).replace("7", "1", 1).replace("7", "2"),
    "a numbered list": "What I see:\n1. one launch\n2. a loop\n\nIdeas:\n\n"
    "1. **Tile it.**\n   - *Category*: loops\n2. Fuse\n   it.\n   - *Category*: memory\n\nGood luck!",
    "cut off in a third": f'{{"ideas": [{items("Tile it.", "Fuse it.")}, {{"text": "Half an ide',
}


@pytest.mark.parametrize("text", IDEAS.values(), ids=IDEAS.keys())
def test_ideas_that_a_person_could_read_are_read(text: str) -> None:
    first, second = read_ideas(text, ENTRIES)
    assert (first.text, first.category) == ("Tile it.", Category.CONTROL_FLOW)
    assert (second.text, second.library_entry) == ("Fuse it.", "")


@pytest.mark.parametrize(
    "text",
    [
        *(ONE, f"[{ONE}]", fenced(ONE, "json"), '["Tile it."]'),
        '{"idea": "Tile it.", "variants": ["by 64", "by 128"]}',
    ],
)
def test_one_idea(text: str) -> None:
    assert [each.text for each in read_ideas(text, ENTRIES)] == ["Tile it."]


@pytest.mark.parametrize(
    ("stated", "category"),
    [
        ("Memory Access", Category.MEMORY),
        ("memory", Category.MEMORY),
        ("latency hiding", Category.LATENCY),
        ("Async / latency", Category.LATENCY),
        ("precision", Category.PRECISION),
        ("data-type", Category.PRECISION),
        ("Occupancy", Category.PARALLELISM),
        ("COMPUTE", Category.COMPUTE),
        ("loops", Category.CONTROL_FLOW),
        ("tiling", Category.COMPUTE),
        (None, Category.COMPUTE),
        (7, Category.COMPUTE),
    ],
)
def test_categories_are_normalised(stated: object, category: Category) -> None:
    (idea,) = read_ideas(json.dumps({"ideas": [{"text": "a", "category": stated}]}), ENTRIES)
    assert idea.category is category


def test_a_known_library_entry_is_kept() -> None:
    (idea,) = read_ideas(TWO.replace('"library_entry": ""', '"library_entry": "entry1"'), ENTRIES)[:1]
    assert idea.library_entry == "entry1"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not JSON"),
        ("Sorry, I have no idea.", "is not JSON"),
        ('{"ideas": [{"text": "cut o', "is not JSON"),
        ("[]", "has no idea"),
        ("7", "has no idea"),
        ("null", "has no idea"),
        ('{"ideas": []}', "has no idea"),
        ('{"ideas": {}}', "has no idea"),
        ('{"error": "overloaded"}', "has no idea"),
        (ideas_answer(" ", seed="seed1"), "has no idea"),
        (json.dumps({"ideas": [{"text": ["a"]}]}), "has no idea"),
        ("[" * 100_000, "is not JSON"),
        ('{"ideas":' * 100_000, "is not JSON"),
    ],
)
def test_ideas_that_cannot_be_used(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_ideas(text, ENTRIES)


CPP = 'extern "C" void f(float *x) { x[0] = 1; }'
KERNELS = {
    "fenced": fenced(KERNEL),
    "without a language": fenced(KERNEL, ""),
    "py": fenced(KERNEL, "py"),
    "tildes": fenced(KERNEL, "python", "~~~"),
    "four backticks": fenced(KERNEL, "python", "````"),
    "an info string": fenced(KERNEL, 'python title="kernel.py"'),
    "an indented fence": textwrap.indent(fenced(KERNEL), "     "),
    "a fence in a list": "1. This:\n\n" + textwrap.indent(fenced(KERNEL), "   "),
    "windows line ends": fenced(KERNEL).replace("\n", "\r\n"),
    "no fence": KERNEL,
    "no fence, in prose": f"Here is the kernel, which tiles.\n\n{KERNEL}\nIt should be faster, I think.\n",
    "after a command": f"First this:\n\n{fenced('pip install x', 'bash')}\nthen\n\n{fenced(KERNEL)}Done.",
    "before its use": f"{fenced(KERNEL)}\nUse it so:\n\n{fenced('model = ModelNew()')}",
    "before C++": f"{fenced(KERNEL)}\nThe inner part alone:\n\n{fenced(CPP, 'cpp')}",
    "an unclosed fence": f"```python\n{KERNEL}",
    "the last of two": f"{fenced(KERNEL.replace('pass', 'first = 1'))}\nBetter:\n{fenced(KERNEL)}",
    "before one that was cut off": f"{fenced(KERNEL)}\nOr:\n```python\nimport torch\nclass ModelNew(to",
    "the last of two without fences": f"Draft:\n{KERNEL.replace('pass', 'x = 1')}\nIt's better so:\n{KERNEL}",
    "after prose that begins with from": f"from here on it is code\n\n{KERNEL}",
    "a file name in the fence": fenced(f"src/kernel.py:\n{KERNEL}"),
    "in two fences": f"{fenced('import torch')}and\n{fenced(KERNEL.partition(chr(10) * 3)[2])}",
    "an indented block": "The file:\n\n" + textwrap.indent(KERNEL, "    "),
    "a fence within a fence": fenced(f'"""Use:\n```\nModelNew()\n```\n"""\n{KERNEL}').replace(
        "import", "import"
    ),
    "after thoughts": f"<think>\n{fenced(KERNEL.replace('pass', 'draft = 1'))}</think>\n{fenced(KERNEL)}",
}


@pytest.mark.parametrize("text", KERNELS.values(), ids=KERNELS.keys())
def test_the_kernel_is_found(text: str) -> None:
    kernel = read_kernel(text)
    assert (kernel.source, kernel.language) == (KERNEL, "cpp")


def test_the_language_is_that_of_the_code() -> None:
    assert read_kernel(fenced("import triton\n" + KERNEL)).language == "triton"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no code"),
        ("I cannot help with that.", "not Python"),
        (fenced("class Model: pass\n"), "no class ModelNew"),
        (fenced("class ModelNew:\n    def forward(self:\n"), "not Python"),
        (fenced("x = 1\n") + fenced("class ModelNew(\n"), "not Python"),
        (fenced(KERNEL + "    def forward(self, x):\n        return x +\n"), "not Python"),
        (KERNEL + "    def forward(self, x):\n        return x +\n\nThat is all.", "not Python"),
        (fenced("#include <torch/extension.h>\nint f() { return 08; }", "cpp"), "C\\+\\+ or CUDA alone"),
    ],
)
def test_code_that_cannot_be_used(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_kernel(text)


LONG = KERNEL.replace("pass", "def forward(self, x):\n        y = x + 1\n        return y + 1")


def edit(old: str, new: str) -> str:
    return f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"


def test_edits_are_applied_to_the_seed() -> None:
    both = edit("        y = x + 1", "        y = x + 2") + "\nand\n" + edit("return y + 1", "return y")
    for text in (
        both,
        fenced(both, "diff"),
        textwrap.indent(fenced(both), "   "),
        f"<think>{edit('a', 'b')}</think>{both}",
    ):
        source = read_kernel(text, LONG).source
        assert source == LONG.replace("x + 1", "x + 2").replace("return y + 1", "return y")


def test_a_whole_file_is_taken_where_a_seed_could_be_edited() -> None:
    assert read_kernel(fenced(KERNEL), LONG).source == KERNEL
    assert read_kernel(edit("no such line", "y") + fenced(KERNEL), LONG).source == KERNEL


def test_an_answer_with_several_variants() -> None:
    sources = [KERNEL.replace("pass", f"number = {i}") for i in range(3)]
    text = "First:\n" + "and\n".join(fenced(each) for each in sources)
    assert [each.source for each in read_kernels(text, LONG, 3)] == sources
    assert [each.source for each in read_kernels(text, LONG, 2)] == sources[1:]
    assert [each.source for each in read_kernels(text, LONG)] == sources[2:]
    assert len(read_kernels(edit("        return y + 1", "        return y"), LONG, 3)) == 1
    with pytest.raises(ValueError, match="not Python"):
        read_kernels("no code", LONG, 3)


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        (
            edit("        y = x + 3", "y"),
            "edit 1: its SEARCH text does not occur; the closest line is 6: y = x",
        ),
        (edit("        return y + 1", "        return y") + edit("+ 7", ""), "edit 2: .* does not occur"),
        (edit("", "y"), "edit 1: its SEARCH text"),
        (edit("+ 1", "+ 2"), "edit 1: its SEARCH text occurs 2 times"),
        (
            edit("class ModelNew(torch.nn.Module):", "class Model:"),
            "after the edits, the code defines no class ModelNew",
        ),
    ],
)
def test_edits_that_do_not_fit(edits: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_kernel(edits, LONG)


def test_the_schema_names_the_seed_and_the_entries() -> None:
    fields = ideas_schema("seed1", ENTRIES)["properties"]["ideas"]["items"]["properties"]
    assert (fields["seed"]["enum"], fields["library_entry"]["enum"]) == (["seed1"], ["", "entry1"])
    assert "probes" not in ideas_schema("seed1", ENTRIES)["properties"]
    asked = ideas_schema("seed1", ENTRIES, probes=True)
    assert asked["required"] == ["ideas", "probes"]
    assert asked["properties"]["probes"]["items"]["properties"]["base"]["enum"] == ["seed1", "", "entry1"]


PROBES = """"probes": [
    {"question": "Is it the\nstores?", "what": "no stores", "base": "entry1"},
    {"question": "the loads?", "what": "no loads", "base": "unheard of"},
    {"question": "the reference?", "what": "an empty launch", "base": ""},
    {"question": "", "what": "nothing"}, {"what": "nothing"}, "nothing"]"""


@pytest.mark.parametrize(
    "answer",
    [
        TWO[:-1] + f", {PROBES}}}",
        fenced(f"{{{PROBES}, {TWO[1:]}", "json") + "\nGood luck.",
        f"{{{PROBES}, {TWO[1:-1]},}}",
    ],
)
def test_probes_are_read_next_to_ideas(answer: str) -> None:
    assert [each.text for each in read_ideas(answer, ENTRIES)] == ["Tile it.", "Fuse it."]
    found = read_probes(answer, "seed1", ENTRIES)
    assert [(each.question, each.base) for each in found] == [
        ("Is it the stores?", "entry1"),
        ("the loads?", "seed1"),
        ("the reference?", ""),
    ]


@pytest.mark.parametrize("answer", [TWO, BARE, "nothing", '{"probes": "many"}', '{"probes": [' * 9000])
def test_an_answer_without_probes_has_none(answer: str) -> None:
    assert read_probes(answer, "seed1", ENTRIES) == []


def test_a_reflection_is_one_line_of_whole_sentences() -> None:
    assert read_reflection("<think>hm</think>\nWider loads paid: 1.4x.\n\nThe rest\nis open.\n") == (
        "Wider loads paid: 1.4x. The rest is open."
    )
    long = read_reflection("It gained 1.5 times. " * 100)
    assert LONGEST_REFLECTION - 100 < len(long) <= LONGEST_REFLECTION
    assert long.endswith("times.")
    assert len(read_reflection("x" * 5000)) == LONGEST_REFLECTION
    with pytest.raises(ValueError, match="no text"):
        read_reflection("<think>hm</think>\n")


@pytest.mark.parametrize(
    ("answer", "places"),
    [
        (
            '{"ranking": [{"idea": 3, "rejected": false}, {"idea": 1}, {"idea": 2, "rejected": true}]}',
            [2, 0, 3],
        ),
        (
            'Here:\n\n```json\n[{"idea": "4"}, {"idea": 4, "rejected": true}, {"idea": 9},]\n```\n',
            [3, 0, 1, 2],
        ),
        ("<think>[1]</think> [2, 4]", [1, 3, 0, 2]),
    ],
)
def test_a_ranking_leaves_out_rejected_ideas(answer: str, places: list[int]) -> None:
    assert read_ranking(answer, 4) == places


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ('{"ranking": [{"idea": 1, "rejected": true}, {"idea": 2, "rejected": true}]}', "rejects every idea"),
        ('{"ranking": []}', "ranks no idea"),
        ("The first one.", "not JSON"),
    ],
)
def test_an_unusable_ranking(answer: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_ranking(answer, 2)


def test_the_schema_of_a_ranking_names_the_ideas() -> None:
    assert ranking_schema(3)["properties"]["ranking"]["items"]["properties"]["idea"]["enum"] == [1, 2, 3]


@pytest.mark.parametrize("depth", range(100, 1000, 50))
def test_deep_nesting_is_a_malformed_answer_at_any_depth(depth: int) -> None:
    with pytest.raises(ValueError, match="answer"):
        read_ideas('{"ideas": ' + "[" * depth + "]" * depth + "}", [])


@pytest.mark.parametrize(
    ("stated", "language"),
    [
        ('"cute"', "cute"),
        ('"CUDA C++"', "cuda"),
        ('"cutile"', "cutile"),
        ('"Rust"', ""),
        ("null", ""),
        ("3", ""),
    ],
)
def test_an_idea_names_its_language(stated: str, language: str) -> None:
    (idea,) = read_ideas(f'{{"ideas": [{{"text": "a", "category": "control", "language": {stated}}}]}}', [])
    assert idea.language == language


def test_the_language_is_asked_for_where_there_is_a_choice() -> None:
    def fields(languages: list[str]) -> dict[str, dict[str, list[str]]]:
        return ideas_schema("", [], languages=languages)["properties"]["ideas"]["items"]["properties"]

    assert fields(["triton", "cute"])["language"]["enum"] == ["triton", "cute"]
    assert "language" not in fields(["cpp"]) and "language" not in fields([])
