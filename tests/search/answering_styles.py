"""A model that answers every question in the next of many styles, as real models do, and remembers what it
meant. It is a script for `ModelServer`."""

from __future__ import annotations

import json
import random
import re
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from search.records.model_calls import Usage
from tests.search.models.chaos import NOTE
from tests.search.models.providers.servers import Asked, Reply

TEXTS = (
    "Keep {n} rows in registers, so that each is read once: the loads of `x` then take half the time.",
    'Store the row\'s maximum in `__shared__` memory for {n} warps ("one load per warp").',
    "Unroll the loop over columns {n} times and hoist exp(x - m) * 2**k out of it.",
    "Split long rows into {n} parts [each at most 4096 wide] and merge {{max, sum}} pairs.",
)
KERNEL = '''import torch
from torch import nn


class ModelNew(nn.Module):
    """Softmax in one call, with a fence in a comment."""  # ~~~

    way = {n}

    def forward(self, x):
        shifted = x - x.amax(dim=-1, keepdim=True)
        return torch.softmax(shifted, dim=-1)
'''

Idea = dict[str, Any]


def _by_schema(ideas: Sequence[Idea]) -> str:
    return json.dumps({"ideas": ideas}, ensure_ascii=False)


def _fenced(text: str, language: str = "json", fence: str = "```") -> str:
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def _in_prose(ideas: Sequence[Idea]) -> str:
    prose = "The kernel is memory-bound [1]: 2 reads {of x} and 1 write."
    block = _fenced(json.dumps({"ideas": ideas}, indent=2))
    return f"{prose}\n\n{block}\nTell me (or ask [2]) if you need more."


def _with_comments(ideas: Sequence[Idea]) -> str:
    items = ",\n".join(f"    {json.dumps(idea)[:-1]},}}  // idea {n}" for n, idea in enumerate(ideas, 1))
    return '{\n  "ideas": [\n' + items.replace("}  //", "},  //") + "\n  ],\n}"


def _after_thoughts(ideas: Sequence[Idea]) -> str:
    return f'<think>\nPerhaps {{"ideas": [{{"text": "no"}}]}}? Better:\n</think>\n\n{_by_schema(ideas)}'


def _with_other_names(ideas: Sequence[Idea]) -> str:
    other = [
        {"id": n, "Title": "One", "description": idea["text"], "Category": "Memory Access", "risk": ["low"]}
        for n, idea in enumerate(ideas, 1)
    ]
    return json.dumps({"analysis": {"bound": "memory"}, "optimizations": other})


def _smart(ideas: Sequence[Idea]) -> str:
    return re.sub(r'(?<!\\)"(.*?)(?<!\\)"', r"“\1”", _by_schema(ideas))


def _with_a_bad_one(ideas: Sequence[Idea]) -> str:
    bad: list[Idea] = [{"category": "memory access", "variants": ["a", "b"]}, {"text": 7}]
    return json.dumps({"ideas": [bad[0], *ideas, bad[1]]})


def _as_headings(ideas: Sequence[Idea]) -> str:
    sections = (
        f"### {n}. {idea['text']}\n\n**Category:** Memory Access\n**Expected effect:** half the time\n"
        "**Variants:**\n1. blocks of 64\n2. blocks of 128\n"
        for n, idea in enumerate(ideas, 1)
    )
    return "## Analysis\n\n1. It is memory-bound.\n2. It has one launch.\n\n## Ideas\n\n" + "\n".join(
        sections
    )


def _one_by_one(ideas: Sequence[Idea]) -> str:
    return "\n".join(f"**Idea {n}**\n\n{_fenced(json.dumps(idea))}" for n, idea in enumerate(ideas, 1))


IDEA_STYLES: dict[str, Callable[[Sequence[Idea]], str]] = {
    "by schema": _by_schema,
    "fenced in prose": _in_prose,
    "a bare list": json.dumps,
    "comments and trailing commas": _with_comments,
    "after thoughts": _after_thoughts,
    "other names and extra keys": _with_other_names,
    "Python's quotes": lambda ideas: str({"ideas": list(ideas)}),
    "smart quotes": _smart,
    "a bad one among good ones": _with_a_bad_one,
    "Markdown headings": _as_headings,
    "a fence for each": _one_by_one,
}

DRAFT = KERNEL.replace("{n}", "-1")
CODE_STYLES: dict[str, Callable[[str], str]] = {
    "one fence": lambda code: _fenced(code, "python"),
    "tildes": lambda code: f"Here it is:\n\n{_fenced(code, 'python', '~~~~')}",
    "four backticks": lambda code: f"{_fenced(code, 'py', '````')}\nIt's ready.",
    "an indented fence": lambda code: "1. The file:\n\n" + textwrap.indent(_fenced(code, "python"), "    "),
    "no fence": lambda code: f"From here on the code follows.\n\n{code}\nIt doesn't copy x.\n",
    "a draft and a final version": lambda code: (
        f"A draft:\n\n{_fenced(DRAFT, 'python')}\nIt's slow. Final version:\n\n{_fenced(code, 'python')}"
    ),
    "a file name before the fence": lambda code: f"**kernel.py**\n{_fenced(code, 'python title=kernel.py')}",
    "a file name in the fence": lambda code: _fenced(f"src/kernel.py\n{code}", ""),
    "imports apart": lambda code: (
        _fenced(code.partition("\n\n\n")[0], "python")
        + "\nand\n\n"
        + _fenced(code.partition("\n\n\n")[2], "python")
    ),
    "after thoughts": lambda code: f"<think>\n{_fenced(DRAFT, 'python')}</think>\n{_fenced(code, 'python')}",
}
EDITS, CONTINUED, CONTINUED_AGAIN = "edits", "cut off and continued", "cut off and continued in a fence"


def some_ideas(first: int, count: int) -> list[Idea]:
    """`count` ideas, from number `first` on."""
    rest = {"category": "memory access", "expected_effect": "half the time", "library_entry": ""}
    return [{"text": TEXTS[n % len(TEXTS)].format(n=n), **rest} for n in range(first, first + count)]


class StyledModel:
    """Answers each question for ideas, and each for code, in the next style, from one that `seed` draws.
    About every sixth kernel fails with the name of its file.

    Attributes:
        ideas: The texts of the ideas that it meant.
        kernels: The sources of the kernels that it meant.
        failing: How many of them fail.
        used: How many answers each style had.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(f"styles/{seed}")
        self._idea_styles = self._rng.sample(list(IDEA_STYLES), len(IDEA_STYLES))
        code_styles = [*CODE_STYLES, EDITS, CONTINUED, CONTINUED_AGAIN]
        self._code_styles = self._rng.sample(code_styles, len(code_styles))
        self._lock = threading.Lock()
        self._rest: dict[str, str] = {}
        self.ideas: list[str] = []
        self.kernels: list[str] = []
        self.failing = 0
        self.used: Counter[str] = Counter()

    def __call__(self, asked: Asked, before: int) -> Reply:
        """One answer."""
        with self._lock:
            question, _, note = asked.prompt.partition(NOTE)
            if note:
                return Reply(text=self._rest.pop(question))
            usage = Usage(input_tokens=len(question) // 4, output_tokens=100)
            if wanted := re.search(r"Propose (\d+) ", question):
                return Reply(text=self._new_ideas(int(wanted[1])), usage=usage)
            if "begins with ```python" not in question:
                return Reply(text="The noise is larger than every gain.", usage=usage)
            start = re.search(r"# The kernel to start from\n\n.*?```python\n(.*?)\n```", question, re.DOTALL)
            text, finish = self._new_kernel(question, f"{start[1]}\n" if start else "")
            return Reply(text=text, finish=finish, usage=usage)

    def _new_ideas(self, count: int) -> str:
        ideas = some_ideas(len(self.ideas), count)
        self.ideas += [idea["text"] for idea in ideas]
        return IDEA_STYLES[self._next(self._idea_styles)](ideas)

    def _new_kernel(self, question: str, start: str) -> tuple[str, str | None]:
        """An answer, and why it ends."""
        code = KERNEL.format(n=len(self.kernels) + 1)
        if self._code_styles[0] == EDITS and not start:
            self._code_styles[:2] = reversed(self._code_styles[:2])
        if (style := self._next(self._code_styles)) == EDITS:
            old = next(line for line in start.splitlines() if "way = " in line)
            new = f"    way = {len(self.kernels) + 1}"
            self.kernels.append(start.replace(old, new))
            edit = f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE"
            return f"One line changes:\n\n{_fenced(edit, 'python')}", None
        if len(self.kernels) % 6 == 1 and "# The kernel that failed" not in question:
            code = code.replace("        shifted", "        assert x is None, __file__\n        shifted", 1)
            self.failing += 1
        self.kernels.append(code)
        if style in CODE_STYLES:
            return CODE_STYLES[style](code), None
        whole = f"The kernel:\n\n{_fenced(code, 'python')}"
        cut = self._rng.randrange(whole.index("class"), whole.index("softmax(")) + 1
        line = whole.rindex("\n", 0, cut) + 1
        self._rest[question] = whole[cut:] if style == CONTINUED else f"```python\n{whole[line:]}"
        return whole[:cut], "length"

    def _next(self, styles: list[str]) -> str:
        styles.append(styles.pop(0))
        self.used[styles[-1]] += 1
        return styles[-1]
