"""A search of any size, written down as its run folder: its journal, and what models were asked."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from evaluators.records.diagnosis import (
    BusyUnit,
    Diagnosis,
    Finding,
    KernelTime,
    Level,
    TrafficBytes,
    WarpStall,
)
from evaluators.records.evaluation import Evaluation, Roofline, Status, Timing
from evaluators.records.problem import Kernel, Problem
from evaluators.records.resources import FunctionResources
from evaluators.records.time_spent import DeviceLease
from search.records.events import (
    BestConfirmed,
    Event,
    IdeaImplemented,
    IdeaProposed,
    KernelDiagnosed,
    ModelCalled,
    RoundClosed,
    RoundReflected,
    RunFinished,
    RunStarted,
    VariantEvaluated,
    VariantWritten,
)
from search.records.journal import Journal
from search.records.model_calls import ModelCall, Purpose, Usage
from search.records.run_state import RunState
from search.records.tree import Category, Idea, Reflection, Variant

MODELS = ("openai/gpt-6", "google/gemini-4-pro")
ATTACK = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title='taken over'\">"
"""In the text of an idea, a kernel, a log and an answer, and in a function's name."""
TRANSPOSE = "void transpose<float, 32>(float const*, float*, int)"
RESOURCES = (
    FunctionResources(name="transpose<float, 32>", registers=168, stack_bytes=2000, shared_bytes=4224),
    FunctionResources(name=ATTACK, registers=32),
)
DIAGNOSIS = Diagnosis(
    device="NVIDIA H200",
    reached=("static", "trace"),
    missing={"counters": "this user may not read the GPU's counters (ERR_NVGPUCTRPERM)"},
    findings=(
        Finding(
            name="bank conflicts",
            evidence="93% of 1.78e+07 passes through shared memory are bank conflicts",
            confidence=Level.TRACE,
            helps="pad the rows of the shared tile by one element, or swizzle its columns",
            share=0.81,
            kernel=TRANSPOSE,
        ),
        Finding(
            name="launch-bound",
            evidence=f"3 launches a call of 1.5 us on average. {ATTACK}",
            confidence=Level.STATIC,
            helps="fuse them",
            share=0.07,
        ),
    ),
    times=(
        KernelTime(kernel=TRANSPOSE, launches=1, mean_us=78.53),
        KernelTime(kernel="at::native::vectorized_elementwise_kernel" * 9, launches=2.5, mean_us=4.2),
    ),
    call_us=95.2,
    gaps_us=3.1,
    units=(BusyUnit(unit="L1 and shared memory", percent=97.0, busiest_part="passes for loads"),),
    stalls=(WarpStall(reason="waiting at a barrier", share=0.31, places=("kernel.py:12", "kernel.py:30")),),
    traffic=TrafficBytes(read=67_120_000, written=46_900_000, least=134_200_000),
    occupancy="at most 100.0%, limited by warps",
    warnings=("kernel.cu(3): warning: unused variable",),
    isolation="namespaces+landlock+seccomp",
    seconds={"static and trace": 3.2},
)
"""A diagnosis with something of everything."""
EAGER_MS, FLOOR_MS = 2.0, 0.2
FAILURES = (
    (Status.COMPILE_ERROR, "kernel.cu(17): error: identifier 'tile' is undefined"),
    (Status.INCORRECT, "the outputs differ: 3 % of the elements, at most by 0.5"),
    (Status.RUNTIME_ERROR, "RuntimeError: CUDA error: an illegal memory access was encountered"),
    (Status.TIMEOUT, "no verdict within 120 s"),
)
REFERENCE = '''import torch
from torch import nn


class Model(nn.Module):
    """A convolution."""

    def forward(self, x):
        return torch.relu(x)
'''
WHAT = (
    "Keep the filter in shared memory and let each block walk along one row of the image",
    "Load four floats at once, with addresses that neighbouring threads share",
    "Overlap the copies of the next tile with the products of this one",
    "Round both factors to half precision and sum in single precision on tensor cores",
    "Unroll the inner loop by eight and keep the partial sums in registers",
    "Start more blocks than there are multiprocessors, each with fewer threads",
)


def source(seed: int, lines: int) -> str:
    """A kernel that differs from others in some of its lines."""
    body = "\n".join(
        f"    float value_{n} = in[threadIdx.x * {n % 7 + seed % (n + 2)} + blockIdx.x];  // step {n}\n"
        f"    out[threadIdx.x + {n}] = value_{n} * {seed % 13}.0f;"
        for n in range(lines)
    )
    return (
        f'import torch\nfrom torch.utils.cpp_extension import load_inline\n\nsource = r"""\n'
        f"#include <cuda_runtime.h>\n__global__ void kernel(const float* in, float* out) {{\n{body}\n}}\n"
        f'"""  # {seed}: {ATTACK if seed == 0 else "plain"}\n\n\n'
        f'class ModelNew(torch.nn.Module):\n    """Takes the place of Model."""\n\n'
        f"    def forward(self, x):\n        return load_inline(name='k{seed}', cuda_sources=source).run(x)\n"
    )


class SyntheticRun:
    """Writes one; equal arguments write equal runs."""

    def __init__(
        self, folder: Path, *, rounds: int = 13, ideas: int = 5, branch: int = 8, lines: int = 60
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.rounds, self.ideas, self.branch, self.lines = folder, rounds, ideas, branch, lines
        self.state = RunState()
        self._random = random.Random(1)
        self._calls: list[str] = []
        self._kernels = 0
        with Journal(folder / "journal.jsonl") as journal:
            for event in self._events():
                self.state.apply(event)
                journal.append([event])
        (folder / "model_calls.jsonl").write_text("".join(self._calls), encoding="utf-8")

    def _events(self) -> Iterable[Event]:
        yield RunStarted(
            at_s=0.0,
            problem=Problem(name="level1/conv2d", source=REFERENCE, device="cuda"),
            proposer="llm",
            strategy="idea_branching",
            rounds=self.rounds,
            seed=0,
            environment={"device": "NVIDIA H200", "torch": "2.11", "driver": "590.1"},
        )
        at_s = 0.0
        for number in range(1, self.rounds + 1):
            yield from self._diagnoses(at_s)
            for place in range(1, self.ideas + 1):
                at_s += 4.0
                yield from self._idea(at_s, number, place)
            at_s += 2.0
            best = next(iter(self.state.tree.best()), None)
            yield RoundClosed(at_s=at_s, round=number, best=best, evaluations=self.state.evaluations)
            text = "Half of the predictions were met." + f" {ATTACK}" * (number == 1)
            reflection = Reflection(round=number, text=text, model=MODELS[0])
            yield RoundReflected(at_s=at_s, reflection=reflection)
        best = self.state.tree.best()[0]
        assert best.evaluation is not None
        yield BestConfirmed(at_s=at_s + 5, variant=best, evaluation=best.evaluation)
        yield RunFinished(at_s=at_s + 5, reason="rounds", best=best, confirmed=best.evaluation)

    def _diagnoses(self, at_s: float) -> Iterable[Event]:
        for best in self.state.tree.best(1):
            if best.kernel.id not in self.state.diagnoses:
                yield KernelDiagnosed(at_s=at_s, seed=best.id, kernel=best.kernel.id, diagnosis=DIAGNOSIS)

    def _idea(self, at_s: float, round: int, place: int) -> Iterable[Event]:
        model = MODELS[place % 2]
        seeds = self.state.tree.before(round).best(3)
        parent = seeds[place % len(seeds)].id if seeds else ""
        what = WHAT[self._random.randrange(len(WHAT))]
        attack = f" {ATTACK}" if (round, place) == (1, 1) else ""
        idea = Idea(
            text=f"{what} (round {round}, number {place}).{attack}",
            category=list(Category)[self._random.randrange(len(Category))],
            parent=parent,
            round=round,
            proposer="llm",
            model=model,
            expected="half the traffic",
        )
        answer = json.dumps({"ideas": [{"text": idea.text}]})
        yield self._call(at_s, Purpose.IDEAS, model, f"round {round}", answer)
        yield IdeaProposed(at_s=at_s, idea=idea, number=place, expansion=place - 1)
        failed = ""
        for number in range(1, self.branch + 1):
            repairs = failed if number == self.branch else ""
            kernel = Kernel(source=source(self._kernels, self.lines), language="cuda")
            self._kernels += 1
            variant = Variant(kernel=kernel, idea=idea.id, parent=parent, round=round, repairs=repairs)
            about = f"variant {repairs}" if repairs else f"idea {idea.id}"
            purpose = Purpose.REPAIR if repairs else Purpose.CODE
            yield self._call(at_s, purpose, model, about, f"```python\n{kernel.source}```\n")
            yield VariantWritten(at_s=at_s, variant=variant, number=number)
            verdict = self._verdict(variant)
            failed = failed if verdict.timing else variant.id
            yield VariantEvaluated(
                at_s=at_s + 0.3 * number, variant=replace(variant, evaluation=verdict), reused=False
            )
        yield IdeaImplemented(at_s=at_s, idea_id=idea.id, variants=self.branch)

    def _verdict(self, variant: Variant) -> Evaluation:
        if self._random.random() < 0.3:
            status, cause = self._random.choice(FAILURES)
            context = "\n".join(f"  at line {n}: {variant.kernel.id}" for n in range(20))
            attack = ATTACK if self._kernels < 9 else ""
            return Evaluation(status=status, log=f"{cause}\n{context}\n{attack}", device_s=0.2, build_s=3.0)
        before = self.state.tree.variants.get(variant.parent)
        start = before.evaluation.speedup if before and before.evaluation else 0.3
        speedup = min(start * self._random.lognormvariate(0.03, 0.25), 0.9 * EAGER_MS / FLOOR_MS)
        timing = Timing(
            kernel_ms=EAGER_MS / speedup,
            eager_ms=EAGER_MS,
            speedup=speedup,
            speedup_low=speedup * 0.98,
            speedup_high=speedup * 1.02,
            compile_ms=1.5,
        )
        roofline = Roofline(bytes=10**9, operations=10**10, floor_ms=FLOOR_MS, bound="memory")
        return Evaluation(
            status=Status.CORRECT,
            timing=timing,
            device_s=0.25,
            build_s=3.0,
            stages_s={"timing": 0.15, "timing_checks": 0.1},
            lease=DeviceLease(device="0", waited_s=1.0, held_s=0.25),
            roofline=roofline,
            resources=RESOURCES,
        )

    def _call(self, at_s: float, purpose: Purpose, model: str, about: str, answer: str) -> ModelCalled:
        call = ModelCall(
            id=f"{len(self._calls) + 1:06d}",
            model=model,
            purpose=purpose,
            about=about,
            attempt=1,
            usage=Usage(input_tokens=3000, output_tokens=2000),
            dollars=0.02 if model == MODELS[0] else 0.01,
            seconds=2.5,
        )
        best = next(iter(self.state.tree.best()), None)
        seed = best.kernel.source if best else "none"
        prompt = f"Make this faster ({about}).\n\n" + "One rule of many.\n" * 40 + seed
        texts = {"system": "You write kernels.", "prompt": prompt, "schema": None, "answer": answer}
        self._calls.append(json.dumps({**asdict(call), **texts}) + "\n")
        return ModelCalled(at_s=at_s, call=call)
