"""The process that runs one module: a candidate's `ModelNew`, or the reference's `Model` as the baseline.

It knows the source of the problem and of the candidate, but never the expected outputs, and it sees inputs
only when it is ordered to run. It reports no times. `messages.py` defines its orders and answers.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import sys
import tempfile
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from evaluators.isolation import confinement, vendor_libraries
from evaluators.isolation.scratch import SOURCE
from evaluators.records.probe import MOST_WORKERS
from evaluators.reference.containers import filled
from evaluators.reference.gradients import saved_bytes
from evaluators.reference.inputs import dependent_calls, weight_changes
from evaluators.reference.loading import init_inputs, load_module, make_model, seed_all
from evaluators.runner import messages, thin_headers
from evaluators.runner.failures import Declined, declines, failure
from evaluators.runner.kept_outputs import KeptOutputs
from evaluators.runner.messages import (
    Change,
    HandIn,
    HandInKept,
    HandInTimestamps,
    Import,
    Load,
    MeasureSaved,
    Move,
    ReadResources,
    Restore,
    RunCalls,
    TraceCalls,
)
from evaluators.runner.output_forms import laid_out, outputs_of, require_returned, tables_in
from evaluators.runner.poisoned_memory import poison_memory
from evaluators.runner.precompile import IMPORTED, compile_ahead
from evaluators.runner.shared_buffers import gate_of, open_shared
from evaluators.system.channel import Channel, ChannelClosed
from evaluators.system.cuda_driver import wait_on_stream
from evaluators.system.cuobjdump import resources_below
from evaluators.system.cupti_trace import DeviceTrace

if TYPE_CHECKING:
    import torch


def run(channel: Channel, *, level: str, spec: dict[str, Any]) -> None:
    """The whole life of a runner, in a separate process; ends by returning."""
    scratch = Path(spec["scratch"])
    os.environ.update(spec["environment"])
    os.nice(spec["niceness"])
    _move(scratch)
    sys.argv = [""]  # the original shows where the evaluator is installed
    reached = confinement.confine(
        scratch,
        readable=[Path(p) for p in spec["readable"]],
        devices=[Path(p) for p in spec["devices"]],
        cores=spec["cores"],
        cpu_s=spec["cpu_s"],
        max_processes=spec["max_processes"],
    )
    if spec.get("libraries") == "no_library":
        vendor_libraries.remove()
    if spec["devices"]:
        _start_gpu()
    if spec["poisons"]:  # for the pages: the same after loading then takes a fraction of the time
        poison_memory("cpu")
    channel.send({"op": "confined", "isolation": "+".join(dict.fromkeys([*reached, level]))})
    with contextlib.suppress(ChannelClosed):
        _serve(channel, spec)


def _serve(channel: Channel, spec: dict[str, Any]) -> None:
    session: RunnerSession | None = None
    candidate: types.ModuleType | None = None
    while True:
        order = messages.order_of(channel.receive())
        try:
            match order:
                case Move():
                    spec["scratch"] = order.scratch
                    _move(Path(spec["scratch"]))
                case Import():
                    _import(Path(spec["scratch"], SOURCE), order)
                    channel.send(messages.Imported().message())
                case ReadResources():
                    found = resources_below(Path(spec["scratch"]), order.architecture)
                    channel.send(messages.ResourcesRead(functions=tuple(found)).message())
                case Load():
                    fd = channel.take_fds(1)[0]
                    if session is not None:  # the next module needs its memory
                        session = None
                        _free_memory(order.problem.device)
                    if spec["role"] == "candidate" and candidate is None:
                        candidate = import_candidate(Path(spec["scratch"], SOURCE))
                    session = RunnerSession(spec, order, fd, candidate)
                    channel.send(messages.Loaded().message())
                case _ if session is None:
                    pass  # no module is loaded
                case RunCalls():
                    session.run(order, channel)
                case Change():
                    alike, buffers = session.change_weights(order.how, order.forms, order.buffers)
                    channel.send(messages.Changed(alike=alike, buffers=buffers).message())
                case Restore():
                    session.restore_weights()
                    channel.send(messages.Restored().message())
                case HandIn():
                    session.hand_in(order.place, order.call)
                    channel.send(messages.HandedIn().message())
                case HandInKept():
                    channel.send(session.hand_in_kept(order).message())
                case HandInTimestamps():
                    channel.send(session.hand_in_timestamps(order.marks).message())
                case MeasureSaved():
                    channel.send(messages.SavedMeasured(bytes=session.saved_bytes()).message())
                case TraceCalls():
                    kernels = session.trace(list(order.calls))
                    channel.send(messages.Counted(kernels=kernels).message())
        except ChannelClosed:
            raise
        except BaseException as error:
            # Whatever way its one candidate fails, the process reports it.
            channel.send(failure(order, error).message())


def _import(path: Path, order: Import) -> None:
    """Imports the candidate's file, so that it compiles what it compiles at import."""
    source = path.read_text(encoding="utf-8")
    module = import_candidate(path)
    if order.architecture and any(each in source for each in IMPORTED):
        compile_ahead(module, order.problem, order.architecture)


def _free_memory(device: str) -> None:
    """Frees the memory of a dropped module. It needs a collection, because automatic ones are off."""
    import torch

    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


class RunnerSession:
    """A loaded module with its views of the shared memory."""

    def __init__(
        self, spec: dict[str, Any], order: Load, fd: int, candidate: types.ModuleType | None = None
    ) -> None:
        """`candidate` is its module; None for the reference's runners."""
        import torch

        problem, self._device = order.problem, order.problem.device
        self._on_gpu = self._device == "cuda"
        self._lean = order.lean
        self._kept: list[list[torch.Tensor]] = []
        self._kept_outputs: KeptOutputs | None = None
        self._tables: list[torch.Tensor] = []
        """Of a probe's last call (see `tables_in`)."""
        self._weights: list[torch.Tensor] = []
        self._changed_buffers: list[str] = []
        reference = load_module(problem.source, problem.overrides)
        if self._on_gpu:  # so that what lies behind a weight is poison, too
            poison_memory(self._device)
        values = init_inputs(reference, order.seed)
        module, cls = (reference, "Model") if candidate is None else (candidate, "ModelNew")
        model = make_model(
            module,
            cls,
            values,
            seed=order.seed,
            device=self._device,
            dtype=problem.dtype,
            backward=problem.backward,
        )
        memory = open_shared(order.buffers, fd)
        inputs, outputs = order.inputs, order.outputs
        self._form = order.form
        self._tensors = inputs.views(memory)
        self._returned = [] if candidate is None else order.returned
        self._inputs = [_arguments(order.arguments, tensors) for tensors in self._tensors]
        self._outputs = outputs.views(memory[inputs.bytes :])
        self._gate = gate_of(memory)
        own = self._inputs[0][: -1 if problem.backward else None]  # without the gradients of outputs
        if candidate is not None and problem.case_of and declines(candidate, own):
            raise Declined("its supports(...) returned false for this case")
        self._model: Any = cast(Any, model)
        if spec["role"] == "compiled":
            mode, whole = spec["compile_mode"], self._model
            if problem.backward:  # PyTorch compiles both passes of the model inside
                whole.model = torch.compile(whole.model, mode=mode)
            else:
                self._model = torch.compile(whole, mode=mode)
        poison_memory(self._device)
        gc.collect()
        gc.disable()  # a collection would add milliseconds to some call

    def run(self, order: RunCalls, channel: Channel) -> None:
        """Runs the module once on the inputs of each call and copies its outputs to their places. On a GPU
        the work is queued behind the gate, which opens when the inputs are there.

        Without `deliver`, the outputs of all calls stay where they are until the next run. Otherwise no
        output outlives its run, so that large ones leave memory to the judge process.
        """
        import torch

        if self._on_gpu:
            stream = torch.cuda.current_stream().cuda_stream
            wait_on_stream(stream, self._gate.data_ptr(), order.turn)
        self._kept.clear()
        if not order.keep:
            self._kept_outputs = None
        filling_s = 0.0
        filled: list[list[torch.Tensor]] = []
        before: int | None = None
        probed: Any = None
        with torch.no_grad():
            for call in order.calls:
                if before is not None:
                    dependent_calls.stir(
                        self._tensors[call], dependent_calls.shares_of(self._outputs[before])
                    )
                if order.seeds:
                    seed_all(order.seeds[call])
                if order.probe or order.forward:
                    run = self._model.forward_pass if order.forward else self._model
                    probed = run(*self._inputs[call])
                    continue
                if order.stand_in:
                    start = time.perf_counter()
                    for _ in range(order.stand_in):
                        filled.append([torch.ones_like(place) for place in self._outputs[call]])
                    output = filled[-1]
                    filling_s += time.perf_counter() - start
                    filled.clear()
                else:
                    found = outputs_of(self._model(*self._inputs[call]), self._form)
                    output = laid_out(found, self._outputs[call])
                    if order.keep:
                        self._keep(found)
                    if self._returned:  # only once, because it takes time
                        require_returned(found, self._tensors[call], self._returned)
                        self._returned = []
                if order.deliver:
                    self._deliver(call, output)
                else:
                    self._kept.append(output)
                if order.chain:
                    before = call
                if order.wait:
                    torch.cuda.synchronize()
        if order.probe:
            self._tables = tables_in(probed)
        if self._on_gpu:
            channel.send(messages.Queued().message())
            torch.cuda.synchronize()
        # On a GPU the judge does not need them, and the clock is running.
        places = None if self._on_gpu else [each.data_ptr() for output in self._kept for each in output]
        filling_ms = filling_s * 1e3 if order.stand_in else None
        channel.send(messages.Done(outputs=places, filling_ms=filling_ms).message())
        if self._lean:  # now, because it takes milliseconds and the clock has stopped
            found, output, probed = [], [], None  # of the last call
            torch.cuda.empty_cache()
            channel.send(messages.MemoryReleased().message())

    def hand_in(self, place: int, call: int) -> None:
        """Delivers, after a block without delivery, the output at `place` in the block, which `call` made."""
        import torch

        self._deliver(call, self._kept[place])
        if self._on_gpu:
            torch.cuda.synchronize()

    def hand_in_timestamps(self, marks: int) -> messages.TimestampsHandedIn:
        """The timestamps of a probe's last call, of some of its workers if there are many."""
        fits = (each for each in self._tables if each.shape[1] in (marks, marks + 1))
        table = next(fits, None)
        if table is None:
            return messages.TimestampsHandedIn(rows=[], workers=0)
        step = -(-len(table) // MOST_WORKERS) or 1
        return messages.TimestampsHandedIn(rows=table[::step].tolist(), workers=len(table))

    def _keep(self, outputs: list[torch.Tensor]) -> None:
        """Keeps the outputs if they are the first since a run without `keep`; otherwise notes where they
        are."""
        if self._kept_outputs is None:
            lent = self._gate.untyped_storage().data_ptr()
            self._kept_outputs = KeptOutputs(outputs, lent=lent)
        else:
            self._kept_outputs.note(outputs)

    def hand_in_kept(self, order: HandInKept) -> messages.KeptHandedIn:
        """Delivers the kept outputs as they are now, or reports where they are."""
        import torch

        kept = self._kept_outputs
        if kept is None:
            raise RuntimeError("no outputs were kept")
        self._kept = [laid_out(kept.outputs, self._outputs[order.call])]
        if order.deliver:
            self._deliver(order.call, self._kept[0])
        if self._on_gpu:
            torch.cuda.synchronize()
        return messages.KeptHandedIn(
            outputs=None if order.deliver else [each.data_ptr() for each in self._kept[0]],
            returned_again=kept.returned_again,
            suspect=kept.suspects(),
            keeps_all=order.release and kept.keeps_all(),
        )

    def _deliver(self, call: int, output: list[torch.Tensor]) -> None:
        """Copies an output to the call's place."""
        for tensor, place in zip(output, self._outputs[call], strict=True):
            place.copy_(tensor)

    def change_weights(
        self, how: weight_changes.WeightChange, forms: list[list[object]], buffers: list[list[object]]
    ) -> tuple[bool, list[str]]:
        """Changes the weights in place, so that whatever was computed from them is out of date. Returns
        whether the weights have these forms, and so the same values as in the judge process, and which of
        these buffers exist."""
        alike = weight_changes.forms_of(self._model) == forms
        wanted = [form for form in buffers if form[0] in how.buffers]
        known = weight_changes.known_buffers(self._model, wanted)
        how = replace(how, buffers=tuple(known))
        self._weights, self._changed_buffers = weight_changes.change(self._model, how, alike=alike), known
        return alike, known

    def restore_weights(self) -> None:
        """Restores the original weights."""
        weight_changes.restore(self._model, self._weights, self._changed_buffers)

    def saved_bytes(self) -> int:
        """What a forward pass saves for the backward pass."""
        return saved_bytes(self._model, self._inputs[0])

    def trace(self, calls: list[int]) -> list[tuple[str, int]]:
        """Runs the calls under the device's trace; returns every kernel with its time in ns."""
        import torch

        with torch.no_grad(), DeviceTrace() as trace:
            for call in calls:
                self._model(*self._inputs[call])
            torch.cuda.synchronize()
        return trace.totals()


def _move(scratch: Path) -> None:
    """Makes the folder this process's home and temporary folder."""
    os.environ.update(confinement.scratch_variables(scratch))
    os.chdir(scratch)
    tempfile.tempdir = None  # forget the folder that an import before the fork may have looked up


def _start_gpu() -> None:
    """Creates the process's CUDA context. An error here recurs where it is reported."""
    import torch

    with contextlib.suppress(RuntimeError):
        torch.empty(1, device="cuda")


def import_candidate(path: Path) -> types.ModuleType:
    """Imports the kernel's file as a module named `candidate`. Raises whatever it raises, or AttributeError
    if it defines no `ModelNew`."""
    if "cpp_extension" in path.read_text(encoding="utf-8"):
        thin_headers.install()
    spec = importlib.util.spec_from_file_location("candidate", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    if not hasattr(module, "ModelNew"):
        raise AttributeError("the kernel defines no class ModelNew")
    return module


def _arguments(template: Any, tensors: list[torch.Tensor]) -> list[Any]:
    """The module's arguments: tensors from the shared buffers, plain values from the order."""
    return list(filled(template, tensors))
