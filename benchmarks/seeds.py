"""Checks and times the shipped kernels of the library on their problems, with the evaluator. Those that a
language model wrote are left to `benchmarks/recorded_winners.py`.

    python benchmarks/seeds.py [device=auto] [only=softmax,matmul] [thorough=true] [out=seeds.json]
    python benchmarks/seeds.py cards=seeds.json

Prints a table: times in ms, the speedup over eager with its 95 % interval, the share of the roofline, the
share of a large copy's bandwidth, and a missed goal. `only` selects the seeds whose line contains one of its
words; `thorough=false` times for a second, and does not time `torch.compile`. `out` gets the evaluations as
JSON; `cards` writes those of such a file into the seeds' cards, replacing earlier measurements of the same
problem on the same architecture. The exit status is 1 when a seed is not correct.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from evaluators.app.command import build, choose_device, compose_config
from evaluators.base.languages import language_of
from evaluators.base.usage_error import UsageError
from evaluators.evaluate.__main__ import EvaluateConfig
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem
from evaluators.scheduler.local_host import LocalHost
from evaluators.scheduler.pool import Pool
from kernel_library.catalogue import cards
from kernel_library.catalogue.entry import Measurement
from kernel_library.catalogue.traits import traits_of

SEEDS = Path(__file__).parents[1] / "kernel_library" / "seeds"
COPY_BYTES = {"cuda": 2**30, "cpu": 2**28}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A seed, a problem for it, and the speedup goals, None for no goal."""

    seed: str
    problem: str
    options: tuple[str, ...] = ()
    device: str = "cuda"
    against_eager: float | None = None
    against_compile: float | None = None

    @property
    def name(self) -> str:
        """Seed, problem and changed sizes, as at the end of its line."""
        return (
            " ".join([self.seed, self.problem, *self.options]).replace("problem.", "").replace("sizes.", "")
        )

    def to_problem(self) -> Problem:
        """The problem that the seed is measured on."""
        overrides = [f"problem={self.problem}", "kernel=none", *self.options]
        problem: Problem = build(compose_config(EvaluateConfig, overrides).problem, device=self.device)
        return problem

    def to_kernel(self) -> Kernel:
        """The seed's current kernel."""
        source = (SEEDS / self.seed / "kernel.py").read_text()
        return Kernel(source=source, language=language_of(source))


HALF = "problem.dtype=float16"
CASES = (
    Case(seed="softmax/triton", problem="level1/softmax", against_eager=1.9, against_compile=1.2),
    Case(
        seed="softmax/triton",
        problem="level1/softmax",
        options=(HALF, "problem.sizes.batch=8192", "problem.sizes.features=8192"),
        against_eager=3.4,
        against_compile=1.6,
    ),
    Case(
        seed="softmax/triton",
        problem="level1/softmax",
        options=(HALF, "problem.sizes.features=50257"),
        against_eager=1.5,
        against_compile=2.2,
    ),
    Case(seed="layernorm/triton", problem="level1/layernorm", against_eager=40, against_compile=1.8),
    Case(seed="layernorm/triton", problem="library/layernorm"),
    Case(seed="rmsnorm/triton", problem="library/rmsnorm", against_eager=1.45, against_compile=1.1),
    Case(seed="sum_rows/triton", problem="library/sum_rows", against_eager=1.5, against_compile=1.0),
    Case(
        seed="cross_entropy/triton", problem="library/cross_entropy", against_eager=2.3, against_compile=2.3
    ),
    Case(seed="rotary/triton", problem="library/rotary", against_eager=7.0, against_compile=1.1),
    Case(seed="matmul/triton_float32", problem="level1/matmul", against_eager=2.5, against_compile=2.5),
    Case(
        seed="matmul/triton_half",
        problem="level1/matmul",
        options=(HALF,),
        against_eager=0.97,
        against_compile=0.97,
    ),
    Case(seed="conv2d/triton", problem="level1/conv2d", against_eager=5.0, against_compile=3.7),
    Case(
        seed="conv2d_relu_maxpool/triton",
        problem="level2/conv2d_relu_maxpool",
        against_eager=6.0,
        against_compile=4.0,
    ),
    Case(seed="swiglu/triton", problem="library/swiglu", against_eager=1.05, against_compile=1.05),
    Case(seed="attention/triton", problem="library/attention", against_eager=0.9),
    Case(seed="attention/gluon", problem="library/attention", against_eager=0.9),
    Case(seed="swiglu/gluon", problem="library/swiglu", against_eager=1.05, against_compile=1.05),
    Case(seed="matmul/gluon_float32", problem="level1/matmul", against_eager=2.5, against_compile=2.5),
    Case(
        seed="matmul/gluon_half",
        problem="level1/matmul",
        options=(HALF,),
        against_eager=0.97,
        against_compile=0.97,
    ),
    *(
        Case(seed=f"{problem.partition('/')[2]}/cpp", problem=problem, device="cpu", against_eager=1.0)
        for problem in (
            "level1/conv2d",
            "level2/conv2d_relu_maxpool",
            "level1/layernorm",
            "level1/matmul",
            "level1/softmax",
        )
    ),
)
HEADER = (
    f"{'eager':>8} {'compile':>8} {'seed':>8}  {'over eager':<22} "
    f"{'compile':>7} {'roofline':>8} {'copy':>5}  seed and problem"
)


def main(arguments: list[str]) -> int:
    """Runs the seeds of one device; returns the exit status."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if unknown := given.keys() - {"device", "only", "out", "thorough", "cards"}:
        raise UsageError(f"unknown key {min(unknown)}; known are device, only, out, thorough, cards")
    if "cards" in given:
        return write_cards(json.loads(Path(given["cards"]).read_text()))
    device, _ = choose_device(given.get("device", "auto"), clustered=False)
    words = given.get("only", "").split(",")
    cases = [case for case in CASES if case.device == device and any(word in case.name for word in words)]
    if not cases:
        raise UsageError(f"only={given.get('only', '')} is in no seed's line for device={device}")
    results: list[dict[str, Any]] = []

    def keep(case: Case, found: Evaluation) -> None:
        about = {"case": CASES.index(case), "kernel": case.to_kernel().id, "date": date.today().isoformat()}
        results.append(about | {"evaluation": found.to_json()})
        if "out" in given:
            Path(given["out"]).write_text(json.dumps(results, indent=1) + "\n")

    found = asyncio.run(measure(cases, device, keep, thorough=given.get("thorough") != "false"))
    return 0 if all(each.timing for each in found) else 1


async def measure(
    cases: Sequence[Case], device: str, keep: Callable[[Case, Evaluation], None], *, thorough: bool
) -> list[Evaluation]:
    """The verdicts on the seeds, each printed and stored immediately; builds run during measurements."""
    copy = copy_bytes_per_s(device)
    print(f"copy: {copy / 1e9:.0f} GB/s\n{HEADER}", flush=True)
    settings = build(compose_config(EvaluateConfig, ["problem=level1/softmax", "kernel=none"]).evaluator)
    pool = Pool(LocalHost(settings=settings, on_gpu=device == "cuda"))

    async def one(case: Case) -> Evaluation:
        found = await pool.evaluate(case.to_problem(), case.to_kernel(), thorough=thorough)
        print(f"{row(found, copy)}  {case.name}{shortfall(case, found)}", flush=True)
        keep(case, found)
        return found

    try:
        return await asyncio.gather(*(one(case) for case in cases))
    finally:
        pool.close()


def row(found: Evaluation, copy: float) -> str:
    """The figures of one evaluation, in the columns of HEADER."""
    timing, roofline = found.timing, found.roofline
    if timing is None:
        return f"{found.status.value}: {found.rule} {found.cause}"
    compiled, over = (
        ("", "")
        if timing.compile_ms is None
        else (f"{timing.compile_ms:.4f}", f"{timing.speedup_vs_compile:.2f}")
    )
    interval = f"{timing.speedup:.2f} ({timing.speedup_low:.2f} to {timing.speedup_high:.2f})"
    share, moved = (
        ("", "")
        if roofline is None
        else (
            f"{roofline.share(timing.kernel_ms):.0%}",
            f"{roofline.bytes / (timing.kernel_ms / 1e3) / copy:.0%}",
        )
    )
    times = f"{timing.eager_ms:8.4f} {compiled:>8} {timing.kernel_ms:8.4f}"
    return f"{times}  {interval:<22} {over:>7} {share:>8} {moved:>5}"


def shortfall(case: Case, found: Evaluation) -> str:
    """The goals that were missed; "" for none."""
    if found.timing is None:
        return ""
    goals = (
        ("eager", case.against_eager, found.timing.speedup),
        ("compile", case.against_compile, found.timing.speedup_vs_compile),
    )
    short = [
        f"{goal:.2f} over {name}" for name, goal, reached in goals if goal and reached and reached < goal
    ]
    return f"  (missed goal: {', '.join(short)})" if short else ""


def write_cards(results: Sequence[dict[str, Any]]) -> int:
    """Writes the evaluations of `out` into the cards. Raises UsageError if a seed has changed since."""
    for result in results:
        case = CASES[result["case"]]
        if case.to_kernel().id != result["kernel"]:
            raise UsageError(f"{case.seed} has changed since it was measured; measure it again")
        card = SEEDS / case.seed / "card.yaml"
        problem = case.to_problem()
        measurement = Measurement(
            problem=problem,
            evaluation=Evaluation.from_json(result["evaluation"]),
            inputs=traits_of(problem).inputs,
            date=result["date"],
            command=f"python -m kernel_library.verify entry={case.seed}",
        )
        card.write_text(cards.renew(card.read_text(), measurement))
        print(card.relative_to(Path.cwd()))
    return 0


def copy_bytes_per_s(device: str) -> float:
    """Bytes per second read and written by a large copy."""
    import torch

    source = torch.rand(COPY_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    times_s = []
    for _ in range(20):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        times_s.append(time.perf_counter() - start)
    del source, target
    if device == "cuda":
        torch.cuda.empty_cache()
    return 2 * COPY_BYTES[device] / statistics.median(times_s)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"seeds.py: {error}")
