"""What all tests need."""

from __future__ import annotations

import gc
import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest_plugins = ["tests.selection"]

LONGEST = (
    *("evaluators/test_catalogue.py", "search/run/test_run.py", "kernel_library/seeds/test_cpp_seeds.py"),
    *("evaluators/test_chaos.py", "search/test_through_the_wire.py", "search/mcp/test_mcp.py"),
    *("evaluators/reference/test_validation.py", "search/proposers/playbook/test_fused.py"),
    *("search/proposers/playbook/templates/cpp/test_contract.py", "docs/test_python_page.py"),
    *("evaluators/device/test_worker_processes.py", "evaluators/device/test_worker_failures.py"),
    *("evaluators/device/test_worker_hostile.py", "evaluators/device/test_worker.py"),
    *("search/proposers/playbook/templates/cpp/test_operators.py", "evaluators/score/test_score.py"),
    *("evaluators/device/test_worker_references.py", "evaluators/scheduler/test_hosts.py"),
    *("evaluators/evaluate/test_evaluate.py", "evaluators/score/test_operator_score.py"),
    *("search/campaign/test_campaign.py", "docs/test_commands.py", "benchmarks/test_peers.py"),
    *("search/models/test_chaos.py", "search/models/providers/test_odd_replies.py"),
    *("evaluators/judge/test_memory.py", "evaluators/runner/test_node_fork_server.py"),
    *("evaluators/build/test_builder.py", "evaluators/build/test_builder_failures.py"),
    *("evaluators/runner/test_thin_headers.py", "kernel_library/test_commands.py"),
    *("evaluators/reference/test_reference_model.py", "evaluators/judge/test_head_to_head.py"),
    *("search/optimize/verification/test_launcher.py", "search/optimize/test_optimize.py"),
    *("docs/test_docs.py", "evaluators/scheduler/test_ray_host.py", "benchmarks/test_harnesses.py"),
    *("benchmarks/test_mutants.py", "evaluators/app/test_cli.py", "evaluators/queue/test_chaos.py"),
    *("search/run/test_ray_cluster.py", "deploy/test_slurm.py"),
)
"""Files that take ten seconds and more. They come first: of processes that take file after file, none is
left with a long one at the end (`make test` keeps this order by `--no-loadscope-reorder`)."""


IN_A_BROWSER = (
    *(f"search/{room}/test_page.py" for room in ("campaign", "compare", "optimize")),
    "search/report/test_browser.py",
)
collect_ignore = [*IN_A_BROWSER] if find_spec("playwright") is None else []
"""Playwright comes with the extra `dev`, not with `test`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {f"tests/{name}": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


def pytest_collection_finish() -> None:
    """What is there by now stays: to look for garbage in it took a tenth of the time of the quick tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts what goes on in the background with interrupts ignored, and so would
    # be every command that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# W&B reports its own errors through OpenTelemetry, which starts threads in every child forked after it.
# Only a process of one thread may enter namespaces (see evaluators/isolation/namespaces.py).
os.environ["WANDB_ERROR_REPORTING"] = "false"

if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
    # The processes share the cores: threads of one would wait, spinning, for a core that another has. So
    # would those of the commands that tests start.
    os.environ["OMP_NUM_THREADS"] = "1"

    import torch

    torch.set_num_threads(1)
