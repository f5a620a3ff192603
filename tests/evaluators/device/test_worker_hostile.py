"""Kernels that lie, forge messages or attack processes, and the honest one after them."""

from __future__ import annotations

from typing import Any

import pytest

from evaluators.device.child_processes import WorkerBroken
from evaluators.device.worker import Worker
from evaluators.isolation import namespaces
from evaluators.records.evaluation import Status
from evaluators.records.timing import SABOTAGED
from evaluators.records.verdict import Verdict
from tests.evaluators.conftest import Marked, gone
from tests.evaluators.device.kernels import HONEST, Judge, assert_honest_is_correct, forward

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("clock", ["real() / 5", "real() * 1e-6", "0.0", "float('nan')", "-real()"])
def test_patched_clocks_change_nothing(judge: Judge, clock: str) -> None:
    """The judge process takes the times: by a runner's own clock these kernels would be five times as fast
    and more. On a busy machine a median may be that fast by chance, but not the interval's lower end."""
    found = judge(f"{HONEST}\nreal = time.perf_counter\ntime.perf_counter = lambda: {clock}\n")
    assert found.status is Status.CORRECT, found
    assert found.timing is not None
    assert found.timing.speedup_low < 3


def test_an_output_is_a_plain_tensor(judge: Judge) -> None:
    """Another kind of tensor could do its work while it is copied, after the call."""
    lazy = forward("return honest(self, x).as_subclass(Lazy)", before="class Lazy(torch.Tensor):\n    pass\n")
    found = judge(lazy)
    assert found.status is Status.INCORRECT, found
    assert found.log == "output 0 is a Lazy, not a plain tensor"


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
    """Again in the next block, whose first call has a known address."""
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
    """It answers every order in time and computes nothing, so there is nothing to read."""
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
    told = {"import": Status.COMPILE_ERROR, "device": Status.CRASHED}
    for phase in ("import", "device", "run", "verdict", ["x"], None):
        message = f'{{"op": "failed", "phase": {phase!r}, "kind": 7}}'.replace("'", '"').replace(
            "None", "null"
        )
        found = judge(f"{HONEST}\nos.write(3, {message.encode() + chr(10).encode()!r})\n")
        assert found.status is told.get(str(phase), Status.RUNTIME_ERROR)


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


def accusation(before_ms: float) -> Verdict:
    """The verdict on a kernel next to which the baseline was slower than this."""
    calls = {"before_calls": 1, "baseline_calls": 1}
    return Verdict(status=Status.REJECTED, rule=SABOTAGED, before_ms=[before_ms] * 3, **calls)


def test_a_baseline_that_is_slow_without_the_kernel_too_is_nobodys_fault(
    worker: Worker, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = worker._try_candidate
    accused = accusation(before_ms=1e-6)
    monkeypatch.setattr(worker, "_try_candidate", lambda *given: judged(*given) and accused)
    with pytest.raises(WorkerBroken, match="the machine is busy"):
        judge(HONEST)
    monkeypatch.undo()
    assert_honest_is_correct(judge)


def test_a_kernel_that_sabotages_the_baseline_is_rejected_when_it_does_so_again(
    worker: Worker, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = worker._try_candidate
    accused = accusation(before_ms=1e6)
    accusations = [accused, None, accused, accused]

    def accuse(*given: Any) -> Verdict:
        found = judged(*given)
        return accusations.pop(0) or found

    monkeypatch.setattr(worker, "_try_candidate", accuse)
    assert judge(HONEST).status is Status.CORRECT
    assert judge(HONEST).rule == SABOTAGED
    assert not accusations


def test_secrets_stay_outside(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here they are planted after the start; `test_sandbox` plants them before."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    found = judge(HONEST + "\nassert 'sk-planted' not in os.environ.values()\n")
    assert found.status is Status.CORRECT, found.log
