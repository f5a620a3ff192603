"""The `ideatree` command, which runs all others:

    ideatree run problem=level1/conv2d rounds=13 branch=8
    ideatree run --help
    eval "$(ideatree -sc install=bash)"     completes commands, groups, choices and keys

`ideatree run …` runs `python -m search.run …`, and so on. It works in any folder, whereas `python -m` would
import a `search.py` in the current folder instead of ours.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from evaluators.base.nearest import nearest

GROUPS = {
    "search": {
        "run": ("search.run", "search for a faster kernel for one problem"),
        "campaign": ("search.campaign", "search for faster kernels for many problems under one budget"),
        "compare": ("search.compare", "compare search strategies at equal budget"),
        "optimize": ("search.optimize", "profile a model and replace its slow parts with faster kernels"),
        "queue": ("search.queue", "show, pack and unpack the requests that await a device elsewhere"),
        "mcp": ("search.mcp", "let a coding agent run the search, as an MCP server"),
        "prompt": ("search.prompt", "print the prompt that a language model would get"),
        "pack": ("search.pack", "pack a run into one file, to replay or continue it elsewhere"),
        "report": ("search.report", "write the HTML report of a run, comparison, campaign or profile"),
    },
    "judge": {
        "evaluate": ("evaluators.evaluate", "check and time one kernel"),
        "score": ("evaluators.score", "check and time a folder of generated kernels"),
        "baseline": ("evaluators.baseline", "time eager PyTorch and torch.compile on a suite"),
        "diagnose": ("evaluators.diagnose", "say what keeps a kernel from being faster"),
        "probe": (
            "evaluators.probe",
            "time a kernel that lacks stores or arithmetic, to learn what limits it",
        ),
        "audit": ("evaluators.audit", "find the problems of a suite that cannot judge kernels"),
    },
    "library": {
        "list": ("kernel_library.list", "list the library's kernels with their measurements"),
        "show": ("kernel_library.show", "print one kernel's card and source"),
        "add": ("kernel_library.add", "evaluate a kernel and add it to the library"),
        "verify": ("kernel_library.verify", "measure the library's kernels again on this machine"),
        "export": ("kernel_library.export", "write kernels as a package for use without Ideatree"),
    },
    "data": {
        "harvest": ("search.harvest", "write training data from runs and the library"),
        "rewards": ("evaluators.rewards", "serve the evaluator over HTTP, as a reward for training"),
        "trace": ("evaluators.trace", "record the operators that a model calls, with their arguments"),
    },
}
"""By group and name, each command's package and description."""
COMMANDS = {name: command for commands in GROUPS.values() for name, command in commands.items()}
COMPLETION = ("-sc", "--shell_completion", "--shell-completion")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the first argument names; returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(_help())  # noqa: T201
        return 0 if given else 2
    if given[0] in COMPLETION:
        return _complete(given)
    name, *rest = given
    if name not in COMMANDS:
        meant = nearest(name, COMMANDS)
        hint = f"did you mean {meant}?" if meant else "ideatree --help lists all commands"
        print(f"ideatree: unknown command {name}; {hint}", file=sys.stderr)  # noqa: T201
        return 2
    return _run(name, rest)


def _help() -> str:
    lines = ["usage: ideatree COMMAND [key=value …]", "       ideatree COMMAND --help"]
    for group, commands in GROUPS.items():
        lines += ["", f"{group}:", *(f"    {name:<9} {about}" for name, (_, about) in commands.items())]
    return "\n".join(lines)


def _complete(arguments: list[str]) -> int:
    """Completes a line for a shell, or installs the completion."""
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
