"""The reference page of the commands is what its script writes."""

from __future__ import annotations

from ideatree.commands import COMMANDS
from tests.docs.pages import DOCS, load

CLI = load(DOCS / "cli.py", "docs_cli")


def test_the_page_is_up_to_date() -> None:
    written = CLI.PAGE.read_text(encoding="utf-8")
    assert written == CLI.page(), "run python docs/cli.py"


def test_every_command_has_its_keys() -> None:
    text = CLI.page()
    for name in COMMANDS:
        assert f"\n## {name}\n\n`ideatree {name} " in text
    assert "| `rounds` | int | `13` |" in text
    assert "| `evaluator.timeout_s` | float | `30.0` |" in text
