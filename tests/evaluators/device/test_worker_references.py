"""References that are broken, refuse inputs, hang or print something."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluators.base.cause import cause_of
from evaluators.device import watchdog
from evaluators.device.child_processes import UnansweredProblem, UnfitProblem, WorkerBroken
from evaluators.device.worker import Worker
from evaluators.records.evaluation import Status
from evaluators.records.problem import Kernel, Problem
from tests.evaluators.device.kernels import HONEST, PROBLEM, REFERENCE, SETTINGS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("returned", "kind", "cause"),
    [
        ("raise ValueError('seven')", UnfitProblem, "the reference cannot be run: ValueError: seven"),
        ("return x + [1]", UnfitProblem, "the reference cannot be run: TypeError: unsupported operand"),
        ("return len(7)", UnfitProblem, "the reference cannot be run: TypeError: object of type 'int'"),
        ("return x, 7.0", UnfitProblem, "the reference cannot judge a kernel: the output contains a float"),
        ("return 0 * x", UnfitProblem, "the reference cannot judge a kernel: "),
        ("raise OSError('no space')", WorkerBroken, "OSError: no space"),
        ("raise RuntimeError('CUDA error: lost')", WorkerBroken, "RuntimeError: CUDA error: lost"),
        (
            "raise RuntimeError('cuDNN error: CUDNN_STATUS_BAD_PARAM')",
            UnfitProblem,
            "the reference cannot be run: RuntimeError: cuDNN error",
        ),
        ("raise SystemExit(3)", UnfitProblem, "the reference cannot be run: SystemExit: 3"),
        (
            "import nowhere_to_be_found",
            UnfitProblem,
            "the reference cannot be judged here: this machine has no Python module nowhere_to_be_found",
        ),
        (
            "open('weights.pt')",
            UnfitProblem,
            "the reference cannot be judged here: no file weights.pt can be opened; a reference",
        ),
        (
            "import signal; os.kill(os.getpid(), signal.SIGKILL)",
            WorkerBroken,
            "the evaluator's own processes did not start: the system has killed the judge process; ",
        ),
        ("os._exit(3)", WorkerBroken, "the evaluator's own processes did not start: "),
    ],
)
def test_the_reason_for_a_broken_reference_is_reported(
    second: Worker, returned: str, kind: type[WorkerBroken], cause: str
) -> None:
    """A failure that may be the machine's is worth another try on another device; others are not."""
    source = REFERENCE.replace("return x\n", f"{returned}\n")
    assert source != REFERENCE
    broken = Problem(name="file/broken", source=source)
    with pytest.raises(WorkerBroken) as caught:
        second.open(broken)
    assert type(caught.value) is kind
    assert cause_of(str(caught.value)).startswith(cause)
    assert second._open.use(broken.id) is None
    intact = kind is UnfitProblem  # nothing of ours has failed
    assert (second._device_processes is not None) is intact, "a broken worker keeps nothing"
    assert second.measure(PROBLEM, Kernel(source=HONEST, language="cpp"), b"").status is Status.CORRECT


@pytest.mark.parametrize(
    ("returned", "allowed", "helps"),
    [
        ("return 0 * x", False, True),
        ("return x, 7.0", False, False),
        ("return x, 7.0", True, False),
        ("self.depth += 1\n        return x", False, False),
        ("self.depth += 1\n        return x", True, False),
    ],
)
def test_the_way_to_accept_a_reference_is_named_where_there_is_one(
    second: Worker, returned: str, allowed: bool, helps: bool
) -> None:
    source = REFERENCE.replace("return x\n", f"{returned}\n")
    broken = Problem(name="file/broken", source=source, allow_degenerate=allowed)
    with pytest.raises(UnfitProblem) as caught:
        second.open(broken)
    assert "the reference cannot judge a kernel: " in str(caught.value)
    assert ("allow_degenerate" in str(caught.value)) is helps


MOVES_BY_NOTHING = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, mean):
        mean.add_(0.0 * x.sum())
        return 2 * x + mean

def get_inputs():
    return [torch.randn(8, 64), torch.randn(64)]

def get_init_inputs():
    return []
"""


def test_a_kernel_may_change_inputs_where_the_reference_does(second: Worker) -> None:
    """Like batch norm's running mean with a momentum of 0, if its input has an infinity."""
    problem = Problem(name="file/moves_by_nothing", source=MOVES_BY_NOTHING)
    own = MOVES_BY_NOTHING.replace("Model(", "ModelNew(")
    found = second.measure(problem, Kernel(source=own, language="cpp"), b"")
    assert found.status is Status.CORRECT, found.log
    spoils = own.replace("mean.add_(0.0 * x.sum())", "mean = mean.clone().add_(mean.fill_(7) - 7)")
    assert spoils != own
    found = second.measure(problem, Kernel(source=spoils, language="cpp"), b"")
    assert found.status is Status.INCORRECT


def test_a_reference_that_asserts_on_the_device_is_opened_again_within_its_range(second: Worker) -> None:
    """Like a loss on a GPU whose inputs must be probabilities; here only the error."""
    refuses = """
        if not (x.amin() >= -8 and x.amax() <= 8):
            raise RuntimeError("CUDA error: device-side assert triggered")
"""
    source = REFERENCE.replace("        for _ in", f"{refuses}        for _ in")
    problem = Problem(name="file/asserts", source=source)
    for _ in range(2):
        found = second.measure(problem, Kernel(source=HONEST, language="cpp"), b"")
        assert found.status is Status.CORRECT, found.log
    assert found.correctness is not None
    assert "range of its own inputs" in found.correctness.untried["large"]
    assert {"small", "near zero", "constant rows"} <= found.correctness.distributions.keys()
    with pytest.raises(UnfitProblem, match="device-side assert"):
        second.open(Problem(name="file/never", source=source.replace("x.amax() <= 8", "x.amax() <= 1")))


BETWEEN_0_AND_1 = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, target):
        for each in (x, target):
            if not (each.amin() >= 0 and each.amax() <= 1):
                raise RuntimeError("CUDA error: device-side assert triggered")
        return nn.functional.binary_cross_entropy(x, target)


def get_inputs():
    return [torch.rand(64, 128), torch.rand(64, 128).round()]


def get_init_inputs():
    return []
"""


def test_a_reference_of_probabilities_is_not_left_by_a_rounding(second: Worker) -> None:
    """Targets of exactly 1 that were off by half an ulp would be out of range."""
    same = Kernel(source=BETWEEN_0_AND_1.replace("class Model", "class ModelNew"), language="cpp")
    found = second.measure(Problem(name="file/probabilities", source=BETWEEN_0_AND_1), same, b"")
    assert found.status is Status.CORRECT, found.log
    assert found.correctness is not None
    assert "range of its own inputs" in found.correctness.untried["large"]


def test_a_reference_that_hangs_is_unfit(second: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "GONE_S", 0.5)
    monkeypatch.setattr(second, "_settings", replace(SETTINGS, open_timeout_s=1.0))
    source = REFERENCE.replace("return x\n", "time.sleep(600)\n")
    with pytest.raises(UnansweredProblem, match=r"the reference cannot be run: .*within 1 s"):
        second.open(Problem(name="file/broken", source=source))


def test_warnings_of_the_judge_process_are_logged_once_per_problem(
    second: Worker, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    said = "import logging\n        logging.getLogger('some').warning('hear, hear')\n"
    noisy = REFERENCE.replace(
        "        for _ in", f"        {said}        print('noise', file=sys.stderr)\n        for _ in"
    )
    problem = Problem(name="file/noisy", source=noisy)
    for _ in range(2):
        found = second.measure(problem, Kernel(source=HONEST, language="cpp"), b"")
        assert found.status is Status.CORRECT, found.log
    assert [record.getMessage() for record in caplog.records] == ["file/noisy: hear, hear"]
    assert "noise" not in "".join(capfd.readouterr())


COMPILED = """
import torch

inner = torch.compile(lambda x: x * (3 if torch.compiler.is_compiling() else 1))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.compile(torch.nn.Linear(64, 64))

    @torch.compile
    def forward(self, x):
        return inner(self.linear(x)) * (3 if torch.compiler.is_compiling() else 1)

def get_inputs():
    return [torch.randn(8, 64)]

def get_init_inputs():
    return []
"""
EAGER = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.linear(x)
"""


def test_a_reference_that_compiles_itself_runs_eagerly(
    second: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """For every dtype and distribution it would be compiled anew."""
    problem = Problem(name="file/compiled", source=COMPILED)
    found = second.measure(problem, Kernel(source=EAGER, language="cpp"), b"")
    assert found.status is Status.CORRECT, found.log
    assert "file/compiled: torch.compile is turned off in the reference" in caplog.text
