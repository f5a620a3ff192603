"""Text of others as a comment in Python source."""

from __future__ import annotations

import re
import textwrap

from evaluators.base.cause import printable

CODING = re.compile(r"coding(?=[:=])")
"""In one of the first two lines, `# … coding: store …` would name the file's encoding (PEP 263)."""
WIDTH = 108


def source_comment(text: str) -> str:
    """Lines of comment with the text, without control characters. Python reads nothing in them."""
    lines = textwrap.wrap(printable(text), WIDTH)
    return "".join(f"# {CODING.sub('coding ', line)}\n" for line in lines)
