"""A worker with real processes judges honest, broken and hostile kernels, one after the other.

All of them before the same worker: what one has done must not change the verdict on the next.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evaluators.cause import cause_of
from evaluators.device import watchdog
from evaluators.device.child_processes import UnfitProblem, WorkerBroken
from evaluators.device.worker import Settings, Worker
from evaluators.evaluation import Evaluation, Status
from evaluators.isolation import namespaces
from evaluators.problem import TOLERANCES, Kernel, Problem
from evaluators.system import process_tree
from evaluators.timing import SABOTAGED, Plan
from tests.evaluators.conftest import Marked, burning, gone

pytestmark = pytest.mark.slow

SETTINGS = Settings(
    timeout_s=5.0,
    open_timeout_s=60.0,
    memory_gb=1.5,
    max_calls=8,
    threads=1,
    compile_mode="",
    plan=Plan(block_ms=4.0, precision=0.2, max_s=0.2),
    thorough_plan=Plan(block_ms=4.0, precision=0.1, max_s=0.5),
)

MODEL = """
import os, sys, time
import torch
from torch import nn

class {name}(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.depth = depth

    def forward(self, x):
        for _ in range(self.depth):
            x = torch.tanh(x @ self.weight)
        return x
"""
REFERENCE = (
    MODEL.format(name="Model")
    + """
width = 128
depth = 8

def get_inputs():
    return [torch.randn(width, width)]

def get_init_inputs():
    return [width, depth]
"""
)
HONEST = MODEL.format(name="ModelNew")
PROBLEM = Problem(name="file/tanhs", source=REFERENCE)
"""About a millisecond a call: long enough that a lie about its time cannot hide in the messages."""


def forward(body: str, *, before: str = "") -> str:
    """The honest kernel with another `forward(self, x)`, which can call `honest(self, x)`."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return (
        f"{HONEST}\n{before}\nhonest = ModelNew.forward\ndef forward(self, x):\n{lines}\n"
        "ModelNew.forward = forward\n"
    )


@pytest.fixture(scope="module")
def worker(marked: Marked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    started = Worker(root=tmp_path_factory.mktemp("root"), settings=SETTINGS)
    yield started
    started.close()
    assert gone(marked), marked()


Judge = Callable[[str], Evaluation]


@pytest.fixture
def judge(worker: Worker) -> Judge:
    def measure(source: str, problem: Problem = PROBLEM) -> Evaluation:
        return worker.measure(problem, Kernel(source=source, language="cpp"), b"")

    return measure


def assert_honest_is_correct(judge: Judge) -> Evaluation:
    found = judge(HONEST)
    assert found.status is Status.CORRECT, found.log
    return found


def test_an_honest_copy_is_correct_and_about_as_fast(judge: Judge, worker: Worker) -> None:
    found = assert_honest_is_correct(judge)
    timing, correctness = found.timing, found.correctness
    assert timing is not None
    assert correctness is not None
    assert timing.speedup_low < 1.3
    assert timing.speedup_high > 0.75
    assert 0.3 < timing.speedup < 3
    assert len(timing.kernel_samples_ms) == len(timing.eager_samples_ms) >= 6
    assert timing.compile_ms is None
    assert correctness.checked_calls >= 7
    assert correctness.normwise_error < 1e-4
    assert correctness.families
    assert all(correctness.families.values())
    assert found.device_s > 0
    assert found.environment["isolation"].startswith("limits")
    assert {"device", "torch"} <= set(found.environment)
    assert "architecture" not in found.environment


def test_the_facts_of_an_open_problem_are_those_of_its_evaluations(worker: Worker) -> None:
    facts = worker.open(PROBLEM)
    assert facts == worker.open(PROBLEM)
    assert (
        facts.items()
        <= worker.measure(
            PROBLEM, Kernel(source=HONEST, language="cpp"), b"", thorough=True
        ).environment.items()
    )


def test_no_scratch_folder_of_a_candidate_is_left(judge: Judge, worker: Worker) -> None:
    judge(forward("open('left', 'w').write('x'); return honest(self, x)"))
    assert [path for path in worker._root.iterdir() if not path.name.startswith("eager-")] == [
        worker._processes.prefork._folder
    ]
    assert not list(worker._processes.prefork._folder.iterdir()), "the next candidate's is empty"


INCORRECT: dict[str, tuple[str, str]] = {
    "NaN": (forward("return honest(self, x) * float('nan')"), "nan instead of"),
    "one NaN": (forward("y = honest(self, x); y[3, 5] = float('nan'); return y"), "the first at [3, 5]"),
    "infinities": (forward("return honest(self, x) / 0"), "instead of"),
    "empty": (forward("return torch.empty_like(x)"), "instead of"),
    "zeros": (forward("return torch.zeros_like(x)"), "0 instead of"),
    "its input": (forward("return x"), "instead of"),
    "wrong shape": (forward("return honest(self, x)[:-1]"), "output 0 is (127, 128)"),
    "transposed shape": (forward("return honest(self, x).flatten()"), "output 0 is (16384,)"),
    "wrong dtype": (forward("return honest(self, x).double()"), "torch.float64"),
    "two outputs": (forward("return x, x"), "2 outputs where the reference has 1"),
    "no output": (forward("return None"), "the output is a NoneType"),
    "the answer of before": (
        forward(
            "key = x.data_ptr()\nif key not in cache:\n    cache[key] = honest(self, x)\nreturn cache[key]",
            before="cache = {}",
        ),
        "wrong ",
    ),
    "the answer to a fingerprint": (
        forward(
            "key = tuple(x.shape)\nif key not in cache:\n    cache[key] = honest(self, x)\nreturn cache[key]",
            before="cache = {}",
        ),
        "wrong ",
    ),
    "inputs changed so that the answer is easy": (forward("x.zero_()\nreturn x.clone()"), "instead of"),
    "one layer less": (forward("self.depth = 7; return honest(self, x)"), "instead of"),
    "only the first call": (
        forward("calls.append(1)\nreturn honest(self, x) if len(calls) < 2 else x", before="calls = []"),
        "wrong ",
    ),
    "the fourth time that its weights change, which no measurement goes without": (
        forward(
            "now = self.weight._version\nself.start = getattr(self, 'start', now)\n"
            "y = honest(self, x)\nreturn y if now - self.start < 7 else y.zero_()"
        ),
        "wrong after its weights were changed in place",
    ),
    "weights of its own": (forward("nn.init.normal_(self.weight)\nreturn honest(self, x)"), "instead of"),
}  # fmt: skip


@pytest.mark.parametrize("case", INCORRECT)
def test_wrong_outputs_are_incorrect(judge: Judge, case: str) -> None:
    source, words = INCORRECT[case]
    found = judge(source)
    assert found.status is Status.INCORRECT, found
    assert words in found.log


@pytest.mark.parametrize(
    "body", ["y = honest(self, x)\nx.fill_(7)\nreturn y", "return x.copy_(honest(self, x))"]
)
def test_inputs_are_to_be_as_they_were(judge: Judge, body: str) -> None:
    found = judge(forward(body))
    assert found.status is Status.INCORRECT, found
    assert "it writes to its input 0, which the reference leaves as it is" in found.log


@pytest.mark.parametrize(
    ("source", "status", "words"),
    [
        (forward("raise ValueError('seven')"), Status.RUNTIME_ERROR, "ValueError: seven"),
        (forward("raise ValueError('x' * 10**6)"), Status.RUNTIME_ERROR, "[…]"),
        (forward("raise ValueError('\\ud800')"), Status.RUNTIME_ERROR, "ValueError"),
        (forward("raise SystemExit(0)"), Status.RUNTIME_ERROR, "SystemExit"),
        (forward("raise KeyboardInterrupt"), Status.RUNTIME_ERROR, "KeyboardInterrupt"),
        (forward("return torch.empty(10**14)"), Status.RUNTIME_ERROR, "memory"),
        (forward("return forward(self, x)"), Status.RUNTIME_ERROR, "RecursionError"),
        ("raise ImportError('seven')", Status.RUNTIME_ERROR, "ImportError: seven"),
        ("x = 1", Status.RUNTIME_ERROR, "no class ModelNew"),
        ("class ModelNew: ...", Status.RUNTIME_ERROR, "TypeError"),
    ],
    ids=lambda value: None if isinstance(value, Status) else str(value)[-40:],
)
def test_exceptions_reach_the_log(judge: Judge, source: str, status: Status, words: str) -> None:
    found = judge(source)
    assert found.status is status
    assert words in found.log
    assert len(found.log) <= 8000
    found.log.encode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("os.abort()", "it died of SIG"),
        ("os._exit(0)", "it exited with status 0"),
        ("os._exit(7)", "it exited with status 7"),
        ("os._exit(255)", "it exited with status 255"),
        ("os.close(3)\nreturn honest(self, x)", ""),
    ],
)
@pytest.mark.parametrize("when", ["at import", "in a call"])
def test_a_death_is_noticed_long_before_the_deadline(judge: Judge, body: str, words: str, when: str) -> None:
    said = "print('last words at', time.time(), flush=True)\n"
    if when == "at import":
        source = HONEST + said + body.replace("return honest(self, x)", "")
    else:
        source = forward(said + body)
    found = judge(source)
    now = time.time()
    assert found.status is Status.CRASHED, found
    assert words in found.log
    died = re.search(r"last words at ([\d.]+)", found.log)
    assert died is not None
    assert now - float(died[1]) < SETTINGS.timeout_s / 2


def test_a_call_that_never_ends(judge: Judge) -> None:
    found = judge(forward("print('last words', flush=True)\ntime.sleep(600)"))
    assert found.status is Status.TIMEOUT
    assert "no verdict within 5 s" in found.log
    assert "last words" in found.log


SPINNING_THREADS = """
import threading
def spin():
    while True: pass
for _ in range(8):
    threading.Thread(target=spin).start()
time.sleep(600)
"""


@pytest.mark.parametrize("body", ["while True: pass", "time.sleep(600)", SPINNING_THREADS])
def test_who_hangs_on_a_busy_machine_is_late_there_too(
    judge: Judge, worker: Worker, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    with monkeypatch.context() as patch, burning(2 * len(os.sched_getaffinity(0))):
        patch.setattr(worker, "_settings", replace(SETTINGS, timeout_s=1.5))
        found = judge(forward(body))
    assert found.status is Status.TIMEOUT, found
    assert found.log.startswith("no verdict within 1.5 s")
    assert_honest_is_correct(judge)


def test_too_much_memory(judge: Judge) -> None:
    found = judge(forward("self.held = torch.ones(2**29)\ntime.sleep(600)"))
    assert found.status is Status.CRASHED
    assert "more than 1.5 GB of memory" in found.log


def test_too_many_processes(judge: Judge, marked: Marked) -> None:
    body = "import subprocess\nwhile True:\n    subprocess.Popen(['/bin/sleep', '599.5'])"
    found = judge(forward(body))
    assert found.status is Status.CRASHED
    assert "more than 256 processes" in found.log
    assert gone(lambda: [each for each in marked() if "599.5" in each])


def test_output_in_masses_is_no_burden(judge: Judge) -> None:
    noise = "for _ in range(2000):\n    print('x' * 20000)\n    sys.stderr.write('y' * 1000)\n"
    found = judge(HONEST + noise)
    assert found.status is Status.CORRECT, found.log
    found = judge(HONEST + noise + "sys.stdout.flush()\nos._exit(1)")
    assert found.status is Status.CRASHED
    assert len(found.log) < 8000


@pytest.mark.parametrize("clock", ["real() / 5", "real() * 1e-6", "0.0", "float('nan')", "-real()"])
def test_patched_clocks_change_nothing(judge: Judge, clock: str) -> None:
    """The times are the judge process's."""
    found = judge(f"{HONEST}\nreal = time.perf_counter\ntime.perf_counter = lambda: {clock}\n")
    assert found.status is Status.CORRECT, found
    assert found.timing is not None
    assert found.timing.speedup < 3


def test_an_output_is_a_plain_tensor(judge: Judge) -> None:
    """What another kind of tensor does when it is copied would be done after the call."""
    lazy = forward("return honest(self, x).as_subclass(Lazy)", before="class Lazy(torch.Tensor):\n    pass\n")
    found = judge(lazy)
    assert found.status is Status.INCORRECT, found
    assert found.log == "output 0 is a Lazy, which is no plain tensor"


@pytest.mark.parametrize(
    "message",
    [
        b"garbage\n",
        b"\x80\x04\x95\n",
        b"{}\n",
        b"[]\n",
        b'{"op": "loaded"}\n',
        b'{"op": "done", "ms": [0.001]}\n',
        b'{"op": "verdict", "status": "correct"}\n',
        b"[" * 100_000 + b"\n",
    ],
    ids=lambda message: repr(message[:50]),
)
def test_a_forged_message_at_import_is_rejected(judge: Judge, message: bytes) -> None:
    found = judge(f"{HONEST}\nos.write(3, {message!r})\n")
    assert found.status is Status.REJECTED, found
    assert found.rule == "forged message"
    found.log.encode()


def test_a_flood_of_descriptors_is_rejected(judge: Judge) -> None:
    found = judge(
        f"{HONEST}\nimport socket\nchannel = socket.socket(fileno=os.dup(3))\n"
        "for _ in range(100):\n    socket.send_fds(channel, [b' '], [0] * 8)\n"
    )
    assert found.status is Status.REJECTED, found
    assert found.rule == "forged message"


def test_done_before_it_is_done(judge: Judge) -> None:
    """And again in the next block, whose first call has an address that was seen."""
    found = judge(
        forward(
            "if x.data_ptr() in seen or not seen:\n"
            "    seen.clear()\n"
            '    os.write(3, b\'{"op": "done"}\\n\')\n'
            "    time.sleep(0.05)\n"
            "seen.add(x.data_ptr())\n"
            "return honest(self, x)",
            before="seen = set()",
        )
    )
    assert found.status in (Status.REJECTED, Status.INCORRECT, Status.CRASHED), found


def test_a_runner_that_is_all_forged(judge: Judge) -> None:
    """It answers every order in time and computes nothing: there is nothing to be read."""
    found = judge(
        f"""{HONEST}
import json
def say(message):
    os.write(3, json.dumps(message).encode() + b"\\n")
say({{"op": "loaded"}})
rest = b""
while True:
    line, newline, rest = rest.partition(b"\\n")
    if not newline:
        rest = line + os.read(3, 65536)
        continue
    order = json.loads(line)
    say({{"op": {{"run": "done", "change": "changed", "restore": "restored"}}[order["op"]], "outputs": [8]}})
"""
    )
    assert found.status is Status.INCORRECT, found
    assert "cannot be read" in found.log


def test_a_kernel_that_speaks_of_another_failure_is_believed_only_to_its_harm(judge: Judge) -> None:
    for phase in ("import", "device", "run", "verdict", ["x"], None):
        message = f'{{"op": "failed", "phase": {phase!r}, "kind": 7}}'.replace("'", '"').replace(
            "None", "null"
        )
        found = judge(f"{HONEST}\nos.write(3, {message.encode() + chr(10).encode()!r})\n")
        assert found.status in (Status.COMPILE_ERROR, Status.CRASHED, Status.RUNTIME_ERROR)


def test_a_daemon_is_gone_with_its_kernel(judge: Judge, marked: Marked) -> None:
    found = judge(
        HONEST + "\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.execv('/bin/sleep', ['sleep', '599.125'])\n    os._exit(0)\nos.wait()\n"
    )
    assert found.status is Status.CORRECT, found.log
    assert gone(lambda: [each for each in marked() if "599.125" in each])


def test_a_kernel_cannot_kill_its_parents_or_the_baseline(judge: Judge) -> None:
    found = judge(
        HONEST + "\nfor pid in [1, *range(3, 40), os.getppid()]:\n    try:\n        os.kill(pid, 9)\n"
        "    except OSError:\n        pass\n"
        if namespaces.has_namespaces()
        else HONEST
    )
    assert found.status is Status.CORRECT, found.log


def test_a_baseline_that_is_slow_without_the_kernel_too_is_nobodys_fault(
    worker: Worker, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = worker._try_candidate
    accused = {"status": "rejected", "timing": None, "rule": SABOTAGED, "before_ms": [1e-6] * 3}
    monkeypatch.setattr(worker, "_try_candidate", lambda *given: judged(*given) | accused)
    with pytest.raises(WorkerBroken, match="the machine is busy"):
        judge(HONEST)
    monkeypatch.undo()
    assert_honest_is_correct(judge)


def test_a_kernel_that_sabotages_the_baseline_is_rejected_when_it_does_so_again(
    worker: Worker, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = worker._try_candidate
    accused = {"status": "rejected", "timing": None, "rule": SABOTAGED, "before_ms": [1e6] * 3}
    accusations = [accused, {}, accused, accused]
    monkeypatch.setattr(worker, "_try_candidate", lambda *given: judged(*given) | accusations.pop(0))
    assert judge(HONEST).status is Status.CORRECT
    assert judge(HONEST).rule == SABOTAGED
    assert not accusations


def test_secrets_stay_outside(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were planted after the start here; `test_sandbox` plants them before."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    found = judge(HONEST + "\nassert 'sk-planted' not in os.environ.values()\n")
    assert found.status is Status.CORRECT, found.log


def test_the_kernel_is_where_its_build_was(worker: Worker, tmp_path: Path) -> None:
    from evaluators.build.builder import _pack

    (tmp_path / "library").write_text("42")
    archive = _pack(tmp_path)
    source = HONEST + "\nimport tempfile\nassert open(tempfile.gettempdir() + '/library').read() == '42'\n"
    found = worker.measure(PROBLEM, Kernel(source=source, language="cpp"), archive)
    assert found.status is Status.CORRECT, found.log


def test_lower_precision_fails_but_where_the_problem_allows_it(worker: Worker) -> None:
    kernel = Kernel(source=forward("return honest(self, x.half().float())"), language="cpp")
    found = worker.measure(PROBLEM, kernel, b"")
    assert found.status is Status.INCORRECT, found
    assert found.correctness is not None
    assert found.correctness.benchmark_rules == {"kernelbench": True, "kernelbench_v02": False}
    found = worker.measure(replace(PROBLEM, precision="float16"), kernel, b"")
    assert found.status is Status.CORRECT, found.log
    assert found.correctness is not None
    assert found.correctness.normwise_error > 10 * found.correctness.eager_error, "what was spent is told"


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_a_kernel_for_one_distribution_only_is_incorrect_under_every_rule(
    worker: Worker, tolerance: str
) -> None:
    kernel = Kernel(source=forward("return honest(self, x.clamp(-6, 6))"), language="cpp")
    found = worker.measure(replace(PROBLEM, tolerance=tolerance), kernel, b"")
    assert found.status is Status.INCORRECT, found
    assert "wrong on inputs of the distribution '" in found.log
    assert found.correctness is not None
    assert [name for name, right in found.correctness.families.items() if not right]
    assert found.correctness.benchmark_rules["kernelbench"] is True


def test_after_all_of_them_an_honest_kernel_is_correct(judge: Judge, worker: Worker) -> None:
    """With the processes that the first verdict came from: none of the above has brought one down."""
    processes = worker._device_processes
    assert processes._judge.poll() is None
    assert_honest_is_correct(judge)
    assert worker._device_processes is processes


VARIED = """
import torch
from torch import nn

class {name}(nn.Module):
    def forward(self, x, index, mask, scale):
        y = torch.tanh(x[index]) * scale
        return [y.half(), y.argmax(-1), mask & (y > 0).all(-1)]
"""


def test_integers_booleans_plain_values_and_lists_of_outputs(judge: Judge) -> None:
    inputs = """
rows = 512
def get_inputs():
    x = torch.randn(256, rows).t()
    return [x, torch.randint(0, rows, (300,)), torch.rand(300) < 0.5, 2.5]
def get_init_inputs():
    return []
"""
    problem = Problem(
        name="file/varied",
        source=VARIED.format(name="Model") + inputs,
        overrides={"rows": 384},
        allow_degenerate=True,
    )
    honest = VARIED.format(name="ModelNew")
    measure: Callable[..., Evaluation] = judge
    assert measure(honest, problem).status is Status.CORRECT
    for wrong in ("y.argmax(-1) + (x[0, 0] > 0)", "y.argmax(-1).int()", "y.argmin(-1)"):
        found = measure(honest.replace("y.argmax(-1)", wrong), problem)
        assert found.status is Status.INCORRECT, found


@pytest.fixture(scope="module")
def second(marked: Marked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker to break, so that the first keeps its processes."""
    started = Worker(root=tmp_path_factory.mktemp("second"), settings=SETTINGS)
    yield started
    started.close()


SLOW = forward("time.sleep(0.3)\nreturn honest(self, x)")


@pytest.mark.parametrize(
    ("victim", "when"), [("judge process", "measuring"), ("fork server", "idle"), ("baseline", "measuring")]
)
def test_the_death_of_a_process_of_ours_is_not_the_kernels_fault(
    second: Worker, victim: str, when: str
) -> None:
    second.open(PROBLEM)
    pids = {
        "judge process": second._device_processes._judge.pid,
        "fork server": second._device_processes.fork_server._process.pid,
        "baseline": second._processes.eager.pid,
    }
    kernel = Kernel(source=SLOW if when == "measuring" else HONEST, language="cpp")
    killer = threading.Timer(0.6 if when == "measuring" else 0.0, os.kill, (pids[victim], signal.SIGKILL))
    killer.start()
    if when == "idle":
        killer.join()
    with pytest.raises(WorkerBroken) as caught:
        second.measure(PROBLEM, kernel, b"")
    killer.join()
    assert str(caught.value)
    if victim == "judge process":
        found = second.measure(PROBLEM, Kernel(source=HONEST, language="cpp"), b"")
        assert found.status is Status.CORRECT, found.log


def states(pid: int) -> set[str]:
    """The letters of `/proc` for a runner and what is below it ("T": stopped)."""
    found = set()
    for each in (pid, *process_tree.descendants(pid)):
        with contextlib.suppress(FileNotFoundError):
            found.add(Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0])
    return found


def test_the_next_runner_comes_up_during_the_checks_and_stands_still_during_the_timing(
    second: Worker,
) -> None:
    seen: dict[str, tuple[int, set[str]]] = {}

    def note(stage: str) -> None:
        waiting = second._processes.prefork._child
        seen[stage] = (waiting.pid, states(waiting.pid)) if waiting is not None else (0, set())

    honest = Kernel(source=HONEST, language="cpp")
    second.open(PROBLEM)
    second._processes.prefork.drop()
    assert second.measure(PROBLEM, honest, b"", on_stage=note).status is Status.CORRECT
    first, letters = seen["ending"]
    assert letters - {"Z", "D"} == {"T"}, "on its way up it may be in the kernel, and stops then"
    assert seen["loading"][0] == 0, "the baseline is timed then, with nobody beside it"
    assert second._device_processes.fork_server._children.keys() == {
        second._processes.eager.pid,
        first,
    }
    assert second.measure(PROBLEM, honest, b"", on_stage=note).status is Status.CORRECT
    assert seen["loading"][0] == 0, "it was taken"
    assert seen["ending"][0] not in (0, first)


@pytest.mark.parametrize("how", ["killed", "folder removed"])
def test_what_happens_to_a_runner_on_prefork_is_not_the_next_kernels_fault(second: Worker, how: str) -> None:
    honest = Kernel(source=HONEST, language="cpp")
    second.measure(PROBLEM, honest, b"")
    waiting, folder = second._processes.prefork._child, second._processes.prefork._folder
    if how == "killed":
        namespaces.kill_spawned(waiting.pid)
        assert gone(lambda: [waiting.pid] if Path(f"/proc/{waiting.pid}").exists() else [])
    else:
        folder.rmdir()
        with contextlib.suppress(WorkerBroken):  # the pool tries again; if it was on its way up, we do
            second.measure(PROBLEM, honest, b"")
    assert second.measure(PROBLEM, honest, b"").status is Status.CORRECT
    assert not folder.exists()


@pytest.mark.parametrize(
    ("returned", "kind", "cause"),
    [
        ("raise ValueError('seven')", UnfitProblem, "the reference cannot be run: ValueError: seven"),
        ("return 0 * x", UnfitProblem, "the reference cannot judge a kernel: "),
        ("raise OSError('no space')", WorkerBroken, "OSError: no space"),
        ("raise RuntimeError('CUDA error: lost')", WorkerBroken, "RuntimeError: CUDA error: lost"),
        ("os._exit(3)", WorkerBroken, "the evaluator's own processes did not come up: "),
    ],
)
def test_a_broken_reference_is_told_with_its_reason(
    second: Worker, returned: str, kind: type[WorkerBroken], cause: str
) -> None:
    """What may be the machine's doing is worth another try, on another device; the rest is not."""
    source = REFERENCE.replace("return x\n", f"{returned}\n")
    assert source != REFERENCE
    with pytest.raises(WorkerBroken) as caught:
        second.open(Problem(name="file/broken", source=source))
    assert type(caught.value) is kind
    assert cause_of(str(caught.value)).startswith(cause)
    assert second._device_processes is second._processes is None, "a broken worker keeps nothing"


def test_a_reference_that_asserts_on_the_device_is_opened_again_within_its_range(second: Worker) -> None:
    """As a loss does on a GPU whose inputs must be probabilities; here the error alone."""
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
    assert {"small", "near zero", "constant rows"} <= found.correctness.families.keys()
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
    """Targets of exactly 1 that were off by half an ulp would be out of the range."""
    same = Kernel(source=BETWEEN_0_AND_1.replace("class Model", "class ModelNew"), language="cpp")
    found = second.measure(Problem(name="file/probabilities", source=BETWEEN_0_AND_1), same, b"")
    assert found.status is Status.CORRECT, found.log
    assert found.correctness is not None
    assert "range of its own inputs" in found.correctness.untried["large"]


def test_a_reference_that_hangs_is_unfit(second: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "GONE_S", 0.5)
    monkeypatch.setattr(second, "_settings", replace(SETTINGS, open_timeout_s=1.0))
    source = REFERENCE.replace("return x\n", "time.sleep(600)\n")
    with pytest.raises(UnfitProblem, match=r"the reference cannot be run: .*within 1 s"):
        second.open(Problem(name="file/broken", source=source))


def test_what_the_referee_says_is_told_once_a_problem_and_not_on_the_console(
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


def test_closing_leaves_nothing_and_is_not_the_end(tmp_path: Path, marked: Marked) -> None:
    before = set(marked())
    worker = Worker(root=tmp_path, settings=SETTINGS)
    worker.close()
    worker.open(PROBLEM)
    assert set(marked()) - before
    worker.close()
    worker.close()
    assert gone(lambda: sorted(set(marked()) - before))


@pytest.mark.parametrize(
    "change",
    [
        {"timeout_s": 0.0},
        {"memory_gb": -1.0},
        {"max_calls": 0},
        {"threads": 0},
        {"build_timeout_s": float("nan")},
    ],
)
def test_settings_that_nothing_can_be_measured_with(change: dict[str, float]) -> None:
    name = next(iter(change))
    with pytest.raises(ValueError, match=f"evaluator.{name} is .*; it must be positive"):
        Settings(**change)  # type: ignore[arg-type]
