"""The program that runs a candidate to profile it, as a process separate from any measurement:

    python -m evaluators.profiling.profiled_call ORDER.json

It confines itself as candidates are confined, imports the kernel, warms up, and makes a few calls under the
device's trace, or one call between the start and the stop of a profiler that started this program. Then it
disassembles what the kernel's build left, still confined, because those files are the candidate's. What it
found is in `profile.json` in the scratch folder; a candidate can write anything there.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluators.base.json_record import JsonRecord
from evaluators.isolation import confinement, namespaces
from evaluators.isolation.scratch import SOURCE
from evaluators.profiling.binaries import disassembled
from evaluators.records.problem import Problem
from evaluators.system import process_tree
from evaluators.system.cuobjdump import demangled

RESULT = "profile.json"
WARM_UPS, CALLS = 3, 3
QUEUEING_CYCLES = 10**8
"""Of the GPU, about 50 ms: long enough to queue the traced calls."""
SEED = 0
MANGLED = re.compile(r"(?<=Function )_Z\w+|(?<=Function : )_Z\w+")


@dataclass(frozen=True, kw_only=True)
class ProfileOrder(JsonRecord):
    """What to run.

    Attributes:
        problem: one case of a problem.
        scratch: the candidate's folder, with the kernel.
        devices: the device files that it may use.
        confined: whether to confine the process; without, it only has limits.
        isolate: whether to enter namespaces, which a profiler around this process cannot follow.
        profiler: whether a profiler started this program; otherwise the calls are traced.
        runs: whether to call the kernel at all; otherwise it is only built.
        cpu_s: limit on the CPU seconds of each process.
        max_processes: limit on the number of processes.
    """

    problem: Problem
    scratch: str
    devices: tuple[str, ...] = ()
    confined: bool = True
    isolate: bool = True
    profiler: bool = False
    runs: bool = True
    cpu_s: int = 600
    max_processes: int = 4096


@dataclass(frozen=True, kw_only=True)
class ProfiledCall(JsonRecord):
    """What the program found.

    Attributes:
        isolation: the confinement in force.
        device: the GPU's name; "" on a CPU.
        capability: its compute capability.
        multiprocessors: their number.
        calls: traced calls.
        launches: name, start and end in ns, grid, block, registers and shared bytes of each traced launch.
        untraced: why there is no trace.
        resources: what the disassembler says of the binaries' resources; `sass` is their code.
        no_code: why there is no code.
    """

    isolation: str = ""
    device: str = ""
    capability: str = ""
    multiprocessors: int = 0
    calls: int = CALLS
    launches: tuple[Any, ...] = ()
    untraced: str = ""
    resources: str = ""
    sass: str = ""
    no_code: str = ""


def main(path: str) -> int:
    """The program; returns its exit status."""
    order = ProfileOrder.from_json(json.loads(Path(path).read_text()))
    if not order.isolate:
        _run(order, "limits")
        return 0
    process_tree.die_with_parent()
    pid = namespaces.spawn(
        lambda level: _run(order, level), isolate=True, writable=Path(order.scratch), name="profiled"
    )
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) % 256


def _run(order: ProfileOrder, level: str) -> None:
    """Confines this process and profiles the call."""
    scratch = Path(order.scratch)
    os.environ.update(confinement.scratch_variables(scratch))
    os.chdir(scratch)
    tempfile.tempdir = None
    sys.argv = [""]
    on_gpu = order.problem.device == "cuda" and order.runs
    if order.profiler:
        _start_gpu()  # before the confinement: a profiler connects to the process at this moment
    reached = ["limits"]
    if order.confined:
        reached = confinement.confine(
            scratch,
            devices=[Path(each) for each in order.devices],
            cpu_s=order.cpu_s,
            max_processes=order.max_processes,
        )
    else:
        confinement.set_limits(order.cpu_s, order.max_processes)
    isolation = "+".join(dict.fromkeys([*reached, level]))
    about = _device_facts() if on_gpu else {}
    found: dict[str, Any] = {"isolation": isolation, **about}
    call = _loaded(order)
    if order.runs:
        found |= _called(call, order)
    if order.problem.device == "cuda" and not order.profiler:
        found |= _code(scratch)
    (scratch / RESULT).write_text(json.dumps(ProfiledCall(**found).to_json()))


def _start_gpu() -> None:
    """Creates the process's CUDA context."""
    import torch

    torch.empty(1, device="cuda")


def _device_facts() -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
    }


def _loaded(order: ProfileOrder) -> Any:
    """The kernel with its inputs, as a function without arguments."""
    import torch

    from evaluators.reference.loading import init_inputs, load_module, make_inputs, make_model
    from evaluators.runner.runner_process import import_candidate

    problem = order.problem
    reference = load_module(problem.source, problem.overrides)
    candidate = import_candidate(Path(order.scratch, SOURCE))
    if not order.runs:
        return None
    values = init_inputs(reference, SEED)
    how: Any = {"seed": SEED, "device": problem.device, "dtype": problem.dtype, "backward": problem.backward}
    model: Any = make_model(candidate, "ModelNew", values, **how)
    inputs = make_inputs(reference, **how, layout=problem.layout)

    def call() -> None:
        with torch.no_grad():
            model(*inputs)

    return call


def _called(call: Any, order: ProfileOrder) -> dict[str, Any]:
    """Warms up and makes the profiled calls."""
    import torch

    if order.problem.device != "cuda":
        call()
        return {"untraced": "there is no trace of a CPU"}
    for _ in range(WARM_UPS):
        call()
    torch.cuda.synchronize()
    if order.profiler:
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
        return {}
    return _traced(call)


def _traced(call: Any) -> dict[str, Any]:
    """The launches of some calls, which the GPU starts once all of them are queued. Otherwise the gaps
    between launches would be those of the host, which tracing makes slow."""
    import torch

    from evaluators.system.cupti_trace import DeviceTrace

    try:
        with DeviceTrace() as trace:
            torch.cuda._sleep(QUEUEING_CYCLES)  # type: ignore[no-untyped-call]
            for _ in range(CALLS):
                call()
            torch.cuda.synchronize()
    except (OSError, RuntimeError) as error:
        return {"untraced": str(error)}
    named = [
        (demangled(each.name), *each[1:]) for each in sorted(trace.launches, key=lambda each: each.start_ns)
    ]
    return {"launches": tuple(named[1:])}


def _code(scratch: Path) -> dict[str, str]:
    """What the disassembler shows of the binaries that the build left."""
    try:
        resources, sass = disassembled(scratch)
    except (OSError, RuntimeError) as error:
        return {"no_code": str(error)}
    return {"resources": _readable(resources), "sass": _readable(sass)}


def _readable(text: str) -> str:
    """The disassembler's output with the names of C++ functions as in the source."""
    return MANGLED.sub(lambda match: demangled(match[0]), text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
