"""The MCP server, through the SDK's own client: its tools on a fake evaluator, and the real process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.records.evaluation import Status
from evaluators.records.resources import FunctionResources
from search.engine.agent import Agent, AgentRefused, OnStage
from search.engine.run_folder import finalise
from search.mcp import __main__ as mcp
from search.mcp.answers import variant_report
from search.records.journal import Journal, replay
from tests.evaluators.conftest import MARK, Marked, gone, marked  # noqa: F401  (a fixture)
from tests.evaluators.device.kernels import HONEST, REFERENCE, forward
from tests.evaluators.evaluate.test_evaluate import QUICK
from tests.search.agent_fakes import MEMORY, OneEntry, agent, good
from tests.search.engine.test_diagnoses import FakeDiagnoser
from tests.search.fakes import correct, outcome, state_of

pytest.importorskip("mcp")
from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import Implementation, Tool

from search.mcp.tools import Tools, server

ROOT = Path(__file__).parents[3]
MODEL_NEW = "class ModelNew:\n    speed = 3\n"
ME = Implementation(name="a-coding-agent", version="1")


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured result of a tool, which is to succeed; the text says the same."""
    result = await client.call_tool(tool, arguments)
    text = getattr(result.content[0], "text", "")
    assert not result.is_error, text
    assert result.structured_content is not None
    assert json.loads(text) == result.structured_content
    return result.structured_content


async def error(client: Client, tool: str, **arguments: Any) -> str:
    """The error of a tool, which is to fail in one line."""
    result = await client.call_tool(tool, arguments)
    text: str = getattr(result.content[0], "text", "")
    assert result.is_error
    assert len(text.splitlines()) == 1
    return text


def test_a_report_lists_the_resources_of_compiled_functions() -> None:
    functions = (FunctionResources(name="gemm", registers=168, stack_bytes=2000),)
    built = outcome("tile it", replace(correct(), resources=functions), correct()).variants
    lines = [variant_report(each).resources for each in built]
    assert lines == [["gemm: 168 registers and 2 kB stack per thread"], []]


# --- the tools, on a fake evaluator ---------------------------------------------------------------


@asynccontextmanager
async def connected(steered: Agent) -> AsyncIterator[Client]:
    async def opened(on_stage: OnStage) -> Agent:
        on_stage("opening")
        return steered

    steered.start()
    folder = steered.session.journal.path.parent
    tools = Tools(opened, lambda: finalise(folder, steered.session.state))
    async with Client(server(tools), client_info=ME) as client:
        yield client


def with_tools(tmp_path: Path, steps: Callable[[Client], Awaitable[None]], **parts: Any) -> None:
    async def main() -> None:
        with Journal(tmp_path / "journal.jsonl") as journal:
            async with connected(agent(journal, **parts)) as client:
                await asyncio.wait_for(steps(client), 60)

    asyncio.run(main())


def test_a_source_in_a_markdown_fence_costs_nothing(tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        idea = await call(client, "propose_idea", text="tile it", category=MEMORY)
        fenced = f"Here it is:\n\n```python\n{MODEL_NEW}```\n"
        submitted = await call(client, "submit_kernel", idea=idea["idea"], source=fenced)
        shown = await call(client, "read_kernel", id=submitted["kernel"]["id"])
        assert shown["source"] == MODEL_NEW

    with_tools(tmp_path, steps)


@pytest.mark.slow
def test_a_session_over_the_protocol(tmp_path: Path) -> None:
    library = OneEntry()

    async def steps(client: Client) -> None:
        problem = await call(client, "read_problem")
        assert (problem["reference"], problem["languages"]) == ("class Model: ...", ["cpp"])
        assert problem["sizes"] == {"N": 4, "shape": [2, [3, "x"]]}
        assert problem["eager_ms"] is None
        assert "class ModelNew" in problem["rules"]
        listed = await call(client, "list_kernels", source=True)
        assert [each["source"] for each in listed["library"]] == [library.entry.kernel.source]

        idea = await call(client, "propose_idea", text="tile it", category=MEMORY, parent=library.entry.id)
        assert (idea["round"], idea["parent"]) == (1, library.entry.id)
        first = await call(client, "submit_kernel", idea=idea["idea"], source=good(3))
        assert (first["kernel"]["status"], first["kernel"]["speedup"]) == ("correct", 3)
        assert first["standing"]["evaluations_left"] == 2
        wrong = await call(client, "submit_kernel", idea=idea["idea"], source="bad", wait=False)
        assert wrong["kernel"]["status"] == "under way"
        assert wrong["standing"]["under_way"] == {wrong["kernel"]["id"]: "queued"}
        wrong = await call(client, "read_kernel", id=wrong["kernel"]["id"])
        assert (wrong["status"], wrong["log"], wrong["source"]) == ("incorrect", "it is incorrect", "bad")
        assert (await call(client, "read_problem"))["eager_ms"] == 1.5

        history = await call(client, "read_history", category=MEMORY)
        (tried,) = history["tried"]
        assert (tried["by"], tried["best"], tried["gain"]) == ("a-coding-agent", first["kernel"]["id"], 2)
        assert sorted(tried["variants"].values()) == ["correct", "incorrect"]
        assert (await call(client, "read_history", limit=0))["tried"] == []
        assert (await call(client, "read_history", category="control flow and loops"))["tried"] == []

        ended = await call(client, "finish")
        assert (ended["reason"], ended["confirmed"], ended["best"]["speedup"]) == ("finished", True, 3)
        assert ended["summary"] == json.loads((tmp_path / "summary.json").read_text())
        assert (await call(client, "read_budget"))["finished"] == "finished"

    with_tools(tmp_path, steps, library=library, evaluations=3)
    assert "good 3" in (tmp_path / "best.py").read_text()


def test_a_diagnosis_is_read_and_taken_once(tmp_path: Path) -> None:
    diagnoser = FakeDiagnoser()

    async def steps(client: Client) -> None:
        idea = (await call(client, "propose_idea", text="tile it", category=MEMORY))["idea"]
        right, wrong = [
            (await call(client, "submit_kernel", idea=idea, source=source))["kernel"]["id"]
            for source in (good(2), "bad")
        ]
        read = await call(client, "read_diagnosis", id=right)
        assert (read["id"], read["diagnosis"].splitlines()[0]) == (right, "Profile; levels: static.")
        assert await call(client, "read_diagnosis", id=right) == read
        assert len(diagnoser.kernels) == 1
        assert "(incorrect)" in await error(client, "read_diagnosis", id=wrong)
        assert "unknown kernel" in await error(client, "read_diagnosis", id="x")
        assert (await call(client, "read_budget"))["evaluations"] == 2

    with_tools(tmp_path, steps, diagnoser=diagnoser)


def test_profiles_can_be_off(tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        idea = (await call(client, "propose_idea", text="tile it", category=MEMORY))["idea"]
        kernel = (await call(client, "submit_kernel", idea=idea, source=good(2)))["kernel"]
        assert "profile=off" in await error(client, "read_diagnosis", id=kernel["id"])

    with_tools(tmp_path, steps)


def test_what_is_refused_is_an_error_of_one_line(tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        said = await error(client, "propose_idea", text="tile it", category="memory")
        assert "did you mean memory access?" in said
        assert "propose_idea" in await error(client, "submit_kernel", idea="x", source=good(1))
        assert "unknown variant" in await error(client, "read_kernel", id="x")
        assert await error(client, "propose_idea", text="tile it") == "propose_idea: category: Field required"
        many = await error(client, "list_kernels", limit="many")
        assert many.startswith("list_kernels: limit: Input should be a valid integer")

    with_tools(tmp_path, steps)


def test_progress_is_reported_stage_by_stage(tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, str(message).rpartition(" (")[0]))

    async def steps(client: Client) -> None:
        idea = await call(client, "propose_idea", text="tile it", category=MEMORY)
        arguments = {"idea": idea["idea"], "source": good(2)}
        await client.call_tool("submit_kernel", arguments, progress_callback=hear)

    with_tools(tmp_path, steps)
    assert [stage for _, stage in told] == ["opening", "queued", "measuring"]
    assert sorted(told) == told


@pytest.mark.slow
def test_the_tools_describe_themselves(tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        tools: dict[str, Tool] = {tool.name: tool for tool in (await client.list_tools()).tools}
        read_only = [n for n, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint]
        assert sorted(tools.keys() - read_only) == [
            "finish",
            "propose_idea",
            "read_diagnosis",
            "submit_kernel",
        ]
        assert all(tool.description and tool.output_schema for tool in tools.values())
        assert MEMORY in tools["propose_idea"].input_schema["properties"]["category"]["enum"]
        assert all(name in (client.instructions or "") for name in ("read_problem", "propose_idea", "finish"))

    with_tools(tmp_path, steps)


def test_a_run_that_cannot_be_opened(tmp_path: Path) -> None:
    async def opened(on_stage: OnStage) -> Agent:
        raise AgentRefused("file/mine cannot be searched: the reference cannot be run: ValueError: seven")

    async def main() -> None:
        async with Client(server(Tools(opened, dict))) as client:
            assert "seven" in await error(client, "read_problem")

    asyncio.run(main())


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "problem is not set"),
        (["problem=level1/conv2"], "did you mean level1/conv2d?"),
        (["problem=level1/conv2d", "budget.evaluation=8"], "did you mean budget.evaluations?"),
        (["problem=level1/conv2d", "device=cpu", "budget.evaluations=0"], "budget.evaluations is 0"),
        (["problem=level1/conv2d", "device=gpu"], "device is gpu"),
        (["problem=level1/conv2d", "device=cpu", "profile=counter"], "profile is counter"),
        (["problem=level1/conv2d", "wandb=maybe"], "unknown wandb maybe"),
        (["run=nowhere"], "not a run folder"),
    ],
)
def test_a_wrong_call_costs_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mcp.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert len(captured.err.strip().splitlines()) == 1


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """The small problem, with quick evaluations."""
    (tmp_path / "reference.py").write_text(REFERENCE)
    quick = [each for each in QUICK if not each.startswith("thorough")]
    small = ["evaluator.compile_mode=", "evaluator.thorough_plan.max_s=0.2", "library.use=false"]
    paths = [f"problem.path={tmp_path / 'reference.py'}", f"out={tmp_path / 'outputs'}"]
    return ["problem=file", "pool=local", "wandb=off", *paths, *quick, *small]


def process(*arguments: str) -> StdioServerParameters:
    environment = {MARK: os.environ[MARK]} if MARK in os.environ else {}
    command = ["-m", "search.mcp", *arguments]
    return StdioServerParameters(command=sys.executable, args=command, cwd=ROOT, env=environment)


def only_folder(tmp_path: Path) -> Path:
    (found,) = (tmp_path / "outputs").rglob("journal.jsonl")
    return found.parent


@pytest.mark.slow
def test_an_agents_session_with_the_real_process(
    tmp_path: Path,
    arguments: list[str],
    marked: Marked,  # noqa: F811
) -> None:
    """Reads the problem, submits an honest kernel and a wrong one, reads the verdicts, and goes away while a
    third is measured. A second process goes on with the run, and finishes it."""
    wrong = forward("return x")

    async def first() -> str:
        async with Client(process(*arguments), client_info=ME) as client:
            problem = await call(client, "read_problem")
            assert problem["reference"] == REFERENCE
            assert problem["facts"]["device"]
            idea = await call(client, "propose_idea", text="leave it as it is", category=MEMORY)
            submitted = [
                call(client, "submit_kernel", idea=idea["idea"], source=source) for source in (HONEST, wrong)
            ]
            honest, bad = [each["kernel"] for each in await asyncio.gather(*submitted)]
            assert honest["status"] == "correct", honest["log"]
            assert honest["speedup_low"] <= honest["speedup"] <= honest["speedup_high"]
            assert bad["status"] == "incorrect"
            assert "elements differ" in bad["log"]
            read = await call(client, "read_diagnosis", id=honest["id"])
            assert "levels: static, trace" in read["diagnosis"] and len(read["diagnosis"]) <= 4000
            assert "(incorrect)" in await error(client, "read_diagnosis", id=bad["id"])
            slow = forward("import time; time.sleep(0.05); return honest(self, x)")
            await call(client, "submit_kernel", idea=idea["idea"], source=slow, wait=False)
            return str(idea["idea"])

    async def second(idea: str) -> None:
        async with Client(process(f"run={only_folder(tmp_path)}"), client_info=ME) as client:
            (tried,) = (await call(client, "read_history"))["tried"]
            assert tried["idea"] == idea
            assert {"correct", "incorrect"} < set(tried["variants"].values())
            taken = await call(client, "submit_kernel", idea=idea, source=HONEST)
            assert taken["kernel"]["status"] == "correct", "it is there already"
            ended = await call(client, "finish")
            assert ended["best"]["status"] == "correct"  # as fast as eager: nothing to confirm
            assert ended["best"]["id"] == taken["kernel"]["id"]

    idea = asyncio.run(first())
    folder = only_folder(tmp_path)
    assert gone(marked), marked()
    assert replay(folder / "journal.jsonl")[-1].reason == "disconnected"  # type: ignore[attr-defined]
    assert json.loads((folder / "summary.json").read_text())["best"]["speedup"] > 0
    assert (folder / "best.py").exists()
    asyncio.run(second(idea))
    state = state_of(folder / "journal.jsonl")
    assert state.finished is not None and state.finished.confirmed is not None
    assert state.tree.rounds_closed == 1
    assert state.statuses[Status.CORRECT] >= 1 <= state.statuses[Status.INCORRECT]
    assert len(state.diagnoses) == 1
    assert len(list((folder / "variants").glob("*.py"))) == 3
    assert gone(marked), marked()


@pytest.mark.slow
def test_a_signal_ends_it_cleanly_while_the_client_is_connected(
    tmp_path: Path,
    arguments: list[str],
    marked: Marked,  # noqa: F811
) -> None:
    command = [sys.executable, "-m", "search.mcp", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as server:  # type: ignore[call-overload]
        deadline = time.monotonic() + 60
        while not list(tmp_path.rglob("journal.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.05)
        folder = only_folder(tmp_path)
        assert mcp.main([f"run={folder}"]) == 2, "one process at a time"
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 130
        assert server.stdout.read() == ""
        assert "Traceback" not in server.stderr.read()
    state = state_of(folder / "journal.jsonl")
    assert state.finished is not None and state.finished.reason == "interrupted"
    assert json.loads((folder / "summary.json").read_text())["best"] is None
    assert gone(marked), marked()


@pytest.mark.slow
def test_the_agent_learns_why_a_problem_cannot_be_run(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "reference.py").write_text(REFERENCE.replace("return x\n", "raise ValueError('seven')\n"))

    async def main() -> None:
        with (tmp_path / "log").open("w") as log:
            async with Client(stdio_client(process(*arguments), errlog=log)) as client:
                said = await error(client, "read_problem")
        assert said.endswith(
            "file/reference cannot be searched: the reference cannot be run: ValueError: seven"
        )

    asyncio.run(main())
    assert (tmp_path / "log").read_text() == (
        "search.mcp: file/reference cannot be searched: the reference cannot be run: ValueError: seven\n"
    )
    assert not (tmp_path / "outputs").exists()
