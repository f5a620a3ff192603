"""Every command under one name, from whatever folder:

    ideatree run problem=level1/conv2d rounds=13 branch=8
    ideatree run --help
    eval "$(ideatree -sc install=bash)"     completes commands, groups, choices and keys

`ideatree run …` is `python -m search.run …`, and so on. `python -m` looks first into the folder that it is
called in: a `search.py` there would be taken for ours.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from evaluators.base.nearest import nearest

COMMANDS = {
    "run": ("search.run", "search for a faster kernel"),
    "compare": ("search.compare", "compare strategies at equal budget"),
    "campaign": ("search.campaign", "search many problems under one budget"),
    "optimize": ("search.optimize", "say where a model's time goes, and what can be won"),
    "evaluate": ("evaluators.evaluate", "judge one kernel"),
    "score": ("evaluators.score", "judge a folder of kernels"),
    "audit": ("evaluators.audit", "say which problems of a suite can judge"),
    "baseline": ("evaluators.baseline", "time eager and torch.compile on a suite"),
    "trace": ("evaluators.trace", "record the operators that a model calls"),
    "prompt": ("search.prompt", "show what a model would be asked"),
    "mcp": ("search.mcp", "let a coding agent search, as an MCP server"),
    "harvest": ("search.harvest", "make training data of runs and the library"),
    "report": ("search.report", "make a run's report.html"),
    "list": ("kernel_library.list", "list the library's kernels"),
    "show": ("kernel_library.show", "show one of them"),
    "add": ("kernel_library.add", "evaluate a kernel and add it"),
    "verify": ("kernel_library.verify", "measure the library's kernels on this machine"),
    "export": ("kernel_library.export", "write the library's kernels as a package"),
}
COMPLETION = ("-sc", "--shell_completion", "--shell-completion")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the first argument names; returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        lines = [f"    ideatree {name:<9} {says}" for name, (_, says) in COMMANDS.items()]
        print("usage: ideatree COMMAND [key=value …]\n\n" + "\n".join(lines))  # noqa: T201
        return 0 if given else 2
    if given[0] in COMPLETION:
        return _complete(given)
    name, *rest = given
    if name not in COMMANDS:
        meant = nearest(name, COMMANDS)
        hint = f"did you mean {meant}?" if meant else f"it has {', '.join(COMMANDS)}"
        print(f"ideatree: no command {name}; {hint}", file=sys.stderr)  # noqa: T201
        return 2
    return _run(name, rest)


def _complete(arguments: list[str]) -> int:
    """Answers a shell that asks to complete a line, or is told how to ask."""
    words = os.environ.get("COMP_LINE", "").split(" ")
    if "query=bash" not in arguments:
        return _run("run", arguments)
    if len(words) < 3:
        print(" ".join(name for name in COMMANDS if name.startswith(words[-1])))  # noqa: T201
        return 0
    if words[1] not in COMMANDS:
        return 0
    os.environ["COMP_LINE"] = " ".join(words[1:])
    return _run(words[1], arguments)


def _run(name: str, arguments: list[str]) -> int:
    module = importlib.import_module(f"{COMMANDS[name][0]}.__main__")
    status: int = module.main(arguments)
    return status
