"""Phrases that read as if they were translated, and what to write instead.

The lint reads the documentation, the configs' comments, the prompt templates, and of the packages every
docstring, comment and string (help texts, errors and printed lines are strings).
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INSTEAD = {
    r"(go|goes|going|went|gone) on with\b": "continues, resumes",
    r"\bbesides\b": "in addition to, as well as",
    r"\bbeside\b": "next to, compared with",
    r"\b(is|are) told by\b": "X shows Y; use X to detect Y",
    r"\bis said (by|of)\b": "X shows Y",
    r"\bsurely (faster|slower)\b": "significantly faster (the 95 % interval excludes 1)",
    r"\b(has|have|having) (ideas?|the ideas?)\b": "proposes ideas",
    r"\bidea on a kernel\b": "an idea for a kernel",
    r"\bso (many|often|long)\b(?! (as|that))": "the number of, for how long",
    r"\b(that is|which is|that are) (?-i:none)\b": "unknown, invalid",
    r"\bwhat is no\b": "names the thing",
    r"\b(is|are) to be had\b": "is available",
    r"\bnot to be had\b": "is not available",
    r"\ball that there is\b": "everything available",
    r"\b(ends?|ended|closes?|closed|stops?) in order\b": "ends cleanly",
    r"\blest\b": "so that … not",
    r"\bseldom\b": "rarely",
    r"\b(wherein|thereby|whereof|thereof)\b": "in which, and so",
    r"\bmakes? (it|them) a problem\b": "turns it into a problem",
    r"\bof which not all\b": "some of",
    r"\bwho (runs|is|has|calls|asks|reads|looks|wants|writes)\b": "that runs; only people are 'who'",
    r"\bof (its|their|one's|our) own\b": "its own, separate, dedicated",
    r"\b(what else|whatever else)\b": "the thing's name",
    r"\bhowever often\b": "any number of times",
    r"\bno (more|matter) what\b": "the condition's name",
}
"""Regular expressions, each with what to write instead."""
PEOPLE = re.compile(
    r"\b(people|person|users?|readers?|engineers?|researchers?|authors?|anyone|everyone|somebody|someone|those|newcomers?|maintainers?|developers?|reviewers?|outsiders|anybody|one)\b[^.]{0,30}$",
    re.IGNORECASE,
)
EXCEPTIONS = {
    "docs/reference/cheats.md": ("beside",),  # the name of a fixture
    "evaluators/judge/attribution/work_share.py": ("of its own",),  # a kernel of its own, and no library's
    "evaluators/reference/inputs/usable_distributions.py": (
        "of its own",
    ),  # the reference's inputs, not a kernel's
}
"""By file: texts that are right as they stand, for a reason that the line shows."""
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
NOT_OURS = ("search/recordings", "kernel_library/seeds", "evaluators/problems", "docs/pictures")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def files() -> list[Path]:
    """Everything that the lint reads."""
    pages = [ROOT / name for name in PAGES if (ROOT / name).is_file()]
    found = [*pages, *(ROOT / "docs").rglob("*.md"), *(ROOT / "configs").rglob("*.yaml")]
    for package in ("evaluators", "kernel_library", "search", "ideatree"):
        found += [each for kind in ("py", "md", "j2", "js") for each in (ROOT / package).rglob(f"*.{kind}")]
    return sorted(each for each in found if not str(each.relative_to(ROOT)).startswith(NOT_OURS))


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file that people read, each with its line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                yield token.start[0], token.string
    else:
        yield 1, FENCED.sub(lambda block: "\n" * block[0].count("\n"), text) if path.suffix == ".md" else text


def found_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Each phrase of a text: how many lines below its beginning, the phrase, and what to write instead."""
    plain = re.sub(r"\s", " ", text)
    for phrase, instead in INSTEAD.items():
        for match in re.finditer(phrase, plain, re.IGNORECASE):
            before = plain[max(0, match.start() - 60) : match.start()]
            if match[0].lower().startswith("who ") and PEOPLE.search(before):
                continue
            yield text[: match.start()].count("\n"), match[0], instead


def problems(path: Path) -> list[str]:
    """The phrases of a file, a line each."""
    name = str(path.relative_to(ROOT))
    allowed = EXCEPTIONS.get(name, ())
    return [
        f"{name}:{line + below}: {phrase!r}; write: {instead}"
        for line, text in texts(path)
        for below, phrase, instead in found_in(text)
        if phrase.lower() not in allowed
    ]


@pytest.mark.core
@pytest.mark.slow
def test_no_page_help_message_or_docstring_reads_as_if_translated() -> None:
    found = [each for path in files() for each in problems(path)]
    assert not found, f"{len(found)} phrases (see CONTRIBUTING.md):\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("A search is gone on with by `resume`.", "gone on with"),
        ("The kernel, and what is\nbesides.", "besides"),
        ("who runs in three pauses is rejected", "who runs"),
        ("a process of its own", "of its own"),
        ("so often, each time with new processes", "so often"),
    ],
)
def test_a_planted_phrase_is_found(text: str, phrase: str) -> None:
    assert phrase in [each for _, each, _ in found_in(text)]


@pytest.mark.parametrize(
    "text", ["People who run kernels.", "so long as it fits", "as many as fit", "A reader who looks here."]
)
def test_plain_english_is_let_through(text: str) -> None:
    assert not list(found_in(text))
