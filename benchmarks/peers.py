"""Compares our kernels with other people's in one session: AutoKernel's starters and the published CUDA
kernels.

    python benchmarks/peers.py autokernel=CLONE published=CLONE [only=matmul] [limit_s=540] [out=peers.json]

The clones are of github.com/RightNow-AI/autokernel and github.com/ScalingIntelligence/good-kernels; with only
one of them, only its kernels are compared. Their files stay unchanged: `benchmarks/peers` has the code before
and after each that turns it into a kernel for the problem. Ours is the fastest of the library's seeds that
`benchmarks/seeds.py` has for the case, all measured on this GPU; a seed made for another GPU fails and does
not count. Our kernels must obey the problem's rule about libraries; the others may use any.

Prints a line per peer kernel with times in ms; a `ratio` below 1 means that ours is faster. `only` selects
lines that contain one of its words. `limit_s` stops what is not done by then. `out` gets everything as JSON,
as it is measured. A peer that gets no time from the evaluator ("wrong") is timed outside it in a separate
process, and ours in the same way for comparison: the median of single calls by events, with the L2 cache
overwritten before each. The exit status is 1 when a line is missing or a kernel of ours is not correct.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.seeds import CASES, HALF, Case
from evaluators.app.command import build, choose_device, compose_config
from evaluators.base.languages import language_of
from evaluators.base.usage_error import UsageError
from evaluators.build.builder import build_environment, scratch_folder
from evaluators.device.child_processes import WorkerBroken
from evaluators.evaluate.__main__ import EvaluateConfig
from evaluators.isolation import confinement
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem
from evaluators.reference.loading import init_inputs, load_module, make_inputs, make_model
from evaluators.runner.runner_process import import_candidate
from evaluators.scheduler.host import WorkerDied
from evaluators.scheduler.local_host import LocalHost
from evaluators.scheduler.pool import Pool
from evaluators.system import process_tree

PARTS = Path(__file__).parent / "peers"
SETTINGS = ("problem=level1/softmax", "kernel=none", "evaluator.timeout_s=90", "evaluator.open_timeout_s=120")
"""Where a build on meta tensors compiles nothing, the first call compiles while using the device."""
OUTSIDE_TIMEOUT_S = 90.0
SEED = 7


@dataclass(frozen=True)
class Peer:
    """A peer kernel and its case. `after`: our file that follows theirs; `reference`: our file that replaces
    the problem's reference."""

    clone: str
    kernel: str
    problem: str
    options: tuple[str, ...] = ()
    after: str = ""
    note: str = ""
    reference: str = ""

    @property
    def name(self) -> str:
        """The case and the kernel, which `only` searches."""
        case = " ".join([self.problem, *self.options]).replace("problem.", "").replace("sizes.", "")
        return f"{case}, {self.clone} {self.kernel}"

    def cases(self, device: str) -> list[Case]:
        """Our kernels: the same problem, one case per seed."""
        case = (self.problem, self.options, device)
        return [each for each in CASES if (each.problem, each.options, each.device) == case]

    def to_problem(self, device: str) -> Problem:
        """The problem for the peer's kernel."""
        problem = replace(self.cases(device)[0].to_problem(), libraries="any")
        if not self.reference:
            return problem
        return replace(problem, name=self.reference, source=(PARTS / f"{self.reference}.py").read_text())

    def to_kernel(self, clone: Path) -> Kernel:
        """The peer's source between our lines. Raises UsageError if the clone lacks it."""
        theirs = clone / FILES[self.clone].format(self.kernel)
        if not theirs.is_file():
            raise UsageError(f"{self.clone}: {theirs} is missing in the clone")
        after = [PARTS / f"{self.after}.py"] if self.after else []
        source = "\n".join(file.read_text() for file in [PARTS / f"before_{self.clone}.py", theirs, *after])
        return Kernel(source=source, language=language_of(source))


A, P = "autokernel", "published"
FILES = {A: "kernels/{}.py", P: "{}/src.py"}
SQUARE = (HALF, "problem.sizes.batch=8192", "problem.sizes.features=8192")
VOCABULARY = (HALF, "problem.sizes.features=50257")
SPILLS = "a row in one program of 4 warps: spills"
TURNS = "turns neighbours, not halves: judged by a reference that does"
PEERS = (
    Peer(A, "softmax", "level1/softmax", (), "plain", SPILLS),
    Peer(P, "Softmax", "level1/softmax"),
    Peer(A, "softmax", "level1/softmax", SQUARE, "plain"),
    Peer(A, "softmax", "level1/softmax", VOCABULARY, "plain", SPILLS),
    Peer(A, "layernorm", "level1/layernorm", (), "layernorm", "a row in one block: Triton takes no 2^22"),
    Peer(P, "LayerNorm", "level1/layernorm", note="variance as mean of squares less square of mean"),
    Peer(P, "LayerNorm2", "level1/layernorm", note="by Welford, one cooperative launch"),
    Peer(A, "layernorm", "library/layernorm", (), "layernorm"),
    Peer(A, "rmsnorm", "library/rmsnorm", (), "rmsnorm"),
    Peer(A, "reduce", "library/sum_rows", (), "plain", "float32 sums, then torch's cast"),
    Peer(A, "cross_entropy", "library/cross_entropy", (), "cross_entropy", SPILLS),
    Peer(A, "rotary_embedding", "library/rotary", (), "plain", TURNS, reference="rotary_neighbours"),
    Peer(A, "matmul", "level1/matmul", (), "plain", "multiplies in TF32: not float32's accuracy"),
    Peer(P, "MatmulFP32", "level1/matmul", note="float16 in two parts, four products"),
    Peer(A, "matmul", "level1/matmul", (HALF,), "plain"),
    Peer(P, "Conv2D", "level1/conv2d", (), "convolution", "float16 products"),
    Peer(P, "Conv2D_ReLU_MaxPool", "level2/conv2d_relu_maxpool", (), "convolution", "float16 products"),
    Peer(A, "fused_mlp", "library/swiglu", (), "swiglu", "its last product is the library's"),
    Peer(A, "flash_attention", "library/attention", (), "plain"),
)


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark; returns its exit status."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if unknown := given.keys() - {A, P, "only", "limit_s", "out", "device"}:
        raise UsageError(f"unknown key {min(unknown)}; known are {A}, {P}, only, limit_s, out, device")
    words = given.get("only", "").split(",")
    chosen = [peer for peer in PEERS if peer.clone in given and any(word in peer.name for word in words)]
    if not chosen:
        raise UsageError(
            "nothing to compare: give autokernel=CLONE, published=CLONE, a word of theirs in only"
        )
    work = {peer: peer.to_kernel(Path(given[peer.clone])) for peer in chosen}
    device, _ = choose_device(given.get("device", "cuda"), clustered=False)
    comparison = Comparison(device, given.get("out", ""))
    asyncio.run(comparison.run(work, float(given.get("limit_s", "540"))))
    rows = comparison.rows
    missing = [peer.name for peer in chosen if not rows.get(peer.name, {}).get("done")]
    print("".join(f"not measured in time: {name}\n" for name in missing), end="")
    return 1 if missing or not all(row["seed"] for row in rows.values()) else 0


class Comparison:
    """One session on one machine, with its rows."""

    def __init__(self, device: str, out: str) -> None:
        self._device, self._out = device, out
        settings = build(compose_config(EvaluateConfig, SETTINGS).evaluator)
        self._host = LocalHost(settings=settings, on_gpu=device == "cuda")
        self._pool = Pool(self._host)
        self._tasks: dict[str, asyncio.Task[Evaluation]] = {}
        self._facts: dict[str, str] = {}
        self.rows: dict[str, dict[str, Any]] = {}

    async def run(self, work: dict[Peer, Kernel], limit_s: float) -> None:
        """Builds during measurements; kernels timed outside the evaluator come last, alone on the device.
        Raises UsageError where nothing can be measured."""
        try:
            async with asyncio.timeout(limit_s):
                self._facts = await self._pool.describe(next(iter(work)).to_problem(self._device))
                print(*(f"{key}={value}" for key, value in self._facts.items()))
                print(f"{'eager':>9} {'ours':>9} {'theirs':>9} {'ratio':>6}  case, theirs; ours", flush=True)
                await asyncio.gather(*(self._judge(peer, kernel) for peer, kernel in work.items()))
                for peer, kernel in work.items():
                    if not self.rows[peer.name]["done"]:
                        await self._judge_outside(peer, kernel, self.rows[peer.name])
        except TimeoutError:
            process_tree.kill_descendants()
        except WorkerBroken as error:
            raise UsageError(str(error)) from error
        finally:
            self._pool.close()

    async def _judge(self, peer: Peer, kernel: Kernel) -> None:
        """Makes the row, by the evaluator; `seed` is "" when none of ours is correct."""
        cases = peer.cases(self._device)
        *ours, theirs = await asyncio.gather(
            *(self._evaluate(case.to_problem(), case.to_kernel()) for case in cases),
            self._evaluate(peer.to_problem(self._device), kernel),
        )
        best, case = min(zip(ours, cases, strict=True), key=lambda pair: kernel_ms(pair[0]) or float("inf"))
        eager_ms = [each.timing.eager_ms for each in (best, theirs) if each.timing]
        self.rows[peer.name] = {
            "note": peer.note,
            "done": theirs.timing is not None,
            "eager_ms": eager_ms[0] if eager_ms else None,
            "seed": case.seed if best.timing else "",
            "ours_ms": kernel_ms(best),
            "theirs_ms": kernel_ms(theirs),
            "status": f"{theirs.status.value} {theirs.rule}".strip(),
            "ours": {case.seed: found.to_json() for case, found in zip(cases, ours, strict=True)},
            "theirs": theirs.to_json(),
        }
        self._keep(peer.name)

    def _evaluate(self, problem: Problem, kernel: Kernel) -> asyncio.Task[Evaluation]:
        """Measures a seed once for several rows."""
        key = f"{problem.id} {kernel.id}"
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._pool.evaluate(problem, kernel))
        return self._tasks[key]

    async def _judge_outside(self, peer: Peer, kernel: Kernel, row: dict[str, Any]) -> None:
        """Puts the times outside the evaluator into the row, where there are any."""
        theirs = await self._time_outside(peer.to_problem(self._device), kernel)
        row |= {"done": True, "outside": theirs, "theirs_ms": theirs.get("ms")}
        for case in peer.cases(self._device):
            if case.seed == row["seed"] and row["theirs_ms"]:
                row["ours_ms"] = (await self._time_outside(case.to_problem(), case.to_kernel())).get("ms")
        self._keep(peer.name)

    async def _time_outside(self, problem: Problem, kernel: Kernel) -> dict[str, Any]:
        """`ms` and `error`, the distance from the reference's output relative to its norm; or `failed`."""
        architecture = self._facts.get("architecture", "")
        try:
            built = await self._host.build(problem, kernel, architecture)  # served by the cache
            with (
                tempfile.TemporaryDirectory() as root,
                scratch_folder(problem, kernel, Path(root), built.archive) as scratch,
            ):
                places = confinement.scratch_variables(scratch) | build_environment(architecture)
                return await asyncio.wait_for(call_outside(problem, scratch, places), OUTSIDE_TIMEOUT_S)
        except (TimeoutError, WorkerDied) as error:
            return {"failed": f"{type(error).__name__} {error}"}

    def _keep(self, name: str) -> None:
        """Prints the row if it is complete, and writes all rows."""
        if self.rows[name]["done"]:
            print(line_of(name, self.rows[name]), flush=True)
        if self._out:
            text = json.dumps({"facts": self._facts, "rows": self.rows}, indent=1)
            Path(self._out).write_text(text + "\n")


def kernel_ms(found: Evaluation) -> float | None:
    """The kernel's time; None if it has none."""
    return found.timing.kernel_ms if found.timing else None


def line_of(name: str, row: dict[str, Any]) -> str:
    """A line of the table."""
    eager, ours, theirs = row["eager_ms"], row["ours_ms"], row["theirs_ms"]
    times = " ".join(f"{ms:9.4f}" if ms else f"{'-':>9}" for ms in (eager, ours, theirs))
    ratio = f"{ours / theirs:6.2f}" if ours and theirs else f"{'-':>6}"
    words = [f"{times} {ratio}  {name}", row["seed"] or "NONE OF OURS IS CORRECT"]
    if "outside" in row:
        timed = row["outside"]
        told = timed.get("failed") or f"error {timed['error']:.1e}, times by events"
        words.append(f"wrong: {row['status']}, {told}")
    return "; ".join(filter(None, [*words, row["note"]]))


async def call_outside(problem: Problem, scratch: Path, places: dict[str, str]) -> dict[str, Any]:
    """Runs `outside` in another process, which ends with this call."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).resolve()), "outside", str(scratch)),
        env={**os.environ, **places},
        **pipes,
    )
    try:
        said, errors = await process.communicate(json.dumps(asdict(problem)).encode())
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        return {"failed": errors.decode(errors="replace").strip().rpartition("\n")[2][:200]}
    return dict(json.loads(said.splitlines()[-1]))


def outside(scratch: Path) -> None:
    """Times the kernel in this folder, for the problem on standard input; prints JSON."""
    import torch
    from torch.utils.benchmark import Timer

    problem = Problem(**json.load(sys.stdin))
    reference = load_module(problem.source, problem.overrides)
    where: Any = {"seed": SEED, "device": problem.device, "dtype": problem.dtype}
    values, inputs = init_inputs(reference, SEED), make_inputs(reference, **where)
    model = make_model(import_candidate(scratch / "kernel.py"), "ModelNew", values, **where)
    with torch.no_grad():
        wanted = make_model(reference, "Model", values, **where)(*inputs)
        error = float((model(*inputs).float() - wanted.float()).norm() / wanted.float().norm())
        if problem.device == "cuda":
            from triton.testing import do_bench

            ms = do_bench(lambda: model(*inputs), warmup=100, rep=1000, return_mode="median")
        else:
            ms = Timer("model(*inputs)", globals=locals()).blocked_autorange().median * 1e3
    print(f"\n{json.dumps({'ms': ms, 'error': error})}")


if __name__ == "__main__":
    try:
        if sys.argv[1:2] == ["outside"]:
            outside(Path(sys.argv[2]))
        else:
            sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"peers.py: {error}")
