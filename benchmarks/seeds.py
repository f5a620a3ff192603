"""Every shipped Triton kernel of the library on its problem, checked and timed by the evaluator.

    python benchmarks/seeds.py [only=softmax,matmul] [out=outputs/seeds] [thorough=true]

`only` takes the seeds whose line contains one of its words; `thorough=false` times for a second, and
`torch.compile` not at all. Needs a GPU. Prints a table: times in ms, speedups with the 95 % interval of the
one against eager, the share of the roofline, the share of a large copy's bandwidth, and what is to be reached
where it was not. `out` gets one evaluation a file, as JSON. Exit status 1 when a seed is not correct.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from evaluators.cli import UsageError, build, compose_config
from evaluators.evaluation import Evaluation
from evaluators.problem import Kernel, Problem, language_of
from evaluators.worker import Worker, WorkerBroken

SEEDS = Path(__file__).parents[1] / "kernel_library" / "seeds"
COPY_BYTES = 2**30


@dataclass(frozen=True, kw_only=True)
class Case:
    """A seed and a problem for it; the speedups to reach, None where there is nothing to."""

    seed: str
    problem: str
    options: tuple[str, ...] = ()
    against_eager: float | None = None
    against_compile: float | None = None

    @property
    def name(self) -> str:
        """Seed, problem and what is changed in it: the end of its line."""
        return (
            " ".join([self.seed, self.problem, *self.options]).replace("problem.", "").replace("sizes.", "")
        )

    @property
    def overrides(self) -> list[str]:
        """For `evaluators.evaluate`, but for the kernel's file."""
        return [f"problem={self.problem}", "kernel=none", *self.options]


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
)
HEADER = (
    f"{'eager':>8} {'compile':>8} {'seed':>8}  {'against eager':<22} "
    f"{'compile':>7} {'roofline':>8} {'copy':>5}  seed and problem"
)


def main(arguments: list[str]) -> int:
    """Runs the seeds one after the other on one device."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if unknown := given.keys() - {"only", "out", "thorough"}:
        raise UsageError(f"unknown key {min(unknown)}; there are only, out, thorough")
    words = given.get("only", "").split(",")
    cases = [case for case in CASES if any(word in case.name for word in words)]
    if not cases:
        raise UsageError(f"only={given['only']} is in no seed's line")
    copy = copy_bytes_per_s()
    print(f"copy: {copy / 1e12:.2f} TB/s\n{HEADER}")
    wrong = 0
    with tempfile.TemporaryDirectory() as root:
        settings = build(compose_config("evaluate", cases[0].overrides).evaluator)
        worker = Worker(root=Path(root), settings=settings)
        for number, case in enumerate(cases):
            problem: Problem = build(compose_config("evaluate", case.overrides).problem, device="cuda")
            source = (SEEDS / case.seed / "kernel.py").read_text()
            kernel = Kernel(source=source, language=language_of(source))
            try:
                found = worker.measure(problem, kernel, b"", thorough=given.get("thorough") != "false")
            except WorkerBroken as error:
                print(f"{case.name}: {error}")
                wrong += 1
                continue
            wrong += found.timing is None
            print(f"{row(found, copy)}  {case.name}{shortfall(case, found)}", flush=True)
            if "out" in given:
                write(Path(given["out"]), f"{number:02d}_{case.seed.replace('/', '_')}", case, found)
        worker.close()
    return 1 if wrong else 0


def row(found: Evaluation, copy: float) -> str:
    """The figures of one evaluation, in the columns of HEADER."""
    timing, roofline = found.timing, found.roofline
    if timing is None:
        return f"{found.status.value}: {found.rule} {found.log[:300]}"
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
    """What is to be reached and was not; "" where everything was."""
    if found.timing is None:
        return ""
    goals = (
        ("eager", case.against_eager, found.timing.speedup),
        ("compile", case.against_compile, found.timing.speedup_vs_compile),
    )
    short = [
        f"{goal:.2f} against {name}" for name, goal, reached in goals if goal and reached and reached < goal
    ]
    return f"  (to reach: {', '.join(short)})" if short else ""


def write(out: Path, name: str, case: Case, found: Evaluation) -> None:
    """The evaluation, with the command's options that repeat it."""
    out.mkdir(parents=True, exist_ok=True)
    data = {"seed": case.seed, "overrides": case.overrides, "evaluation": found.to_json()}
    (out / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


def copy_bytes_per_s() -> float:
    """Bytes read and written by a large copy on the GPU, in a second. Raises UsageError without one."""
    import torch

    if not torch.cuda.is_available():
        raise UsageError("needs a GPU, and torch finds none here")
    source = torch.rand(COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    times_ms = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times_ms.append(start.elapsed_time(end))
    del source, target
    torch.cuda.empty_cache()
    return float(2 * COPY_BYTES / statistics.median(times_ms) * 1e3)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"seeds.py: {error}")
