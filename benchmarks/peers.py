"""Our kernels and other people's, in one session: AutoKernel's starters and the published CUDA kernels.

    python benchmarks/peers.py autokernel=CLONE published=CLONE [only=softmax,matmul] [limit_s=540]
        [out=peers.json]

The clones are of github.com/RightNow-AI/autokernel and github.com/ScalingIntelligence/good-kernels; with one
of them only its kernels are compared. Their files stay as they are: `benchmarks/peers` has what goes before
and after each, so that it becomes a kernel for the problem. Ours is the fastest of the library's seeds that
`benchmarks/seeds.py` has for the case, all measured on this GPU; one made for another GPU fails and does not
count. Ours is held to the problem's own rule about libraries, a peer to none.

Prints a line a kernel of theirs, times in ms; below 1 in the column `ratio`, ours is the faster. `only` takes
the lines that contain one of its words. What is not done after `limit_s` is ended. `out` gets all of it as
JSON, as it comes. A peer that gets no time from the evaluator ("wrong") is timed outside it: the median of
single calls by events, the L2 overwritten before each, in a process of its own, and ours beside it in the
same way. Exit status 1 when a line is missing or a kernel of ours is not correct.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.seeds import CASES, HALF, Case
from evaluators import sandbox
from evaluators.build import build_environment, scratch_folder
from evaluators.cli import UsageError, build, compose_config
from evaluators.evaluation import Evaluation
from evaluators.local import LocalHost
from evaluators.pool import Pool
from evaluators.problem import Kernel, Problem, language_of
from evaluators.reference import init_inputs, load_module, make_inputs, make_model
from evaluators.runner import import_candidate
from evaluators.worker import WorkerBroken

PARTS = Path(__file__).parent / "peers"
SETTINGS = ("evaluator.timeout_s=90", "evaluator.open_timeout_s=120")
"""Where a build on meta tensors compiles nothing, the first call does, with the device held."""
OUTSIDE_TIMEOUT_S = 90.0
SEED = 7


@dataclass(frozen=True)
class Peer:
    """A kernel of theirs and the case that it is for: a row of PEERS. `file` is its path in the clone, `after`
    our file that follows it, `reference` our file that judges it in the place of the problem's."""

    clone: str
    file: str
    problem: str
    options: tuple[str, ...] = ()
    after: str = ""
    note: str = ""
    reference: str = ""

    @property
    def name(self) -> str:
        """The case and the kernel: the end of its line."""
        case = " ".join([self.problem, *self.options]).replace("problem.", "").replace("sizes.", "")
        return f"{case}, {self.clone} {self.file}"

    def cases(self, device: str) -> list[Case]:
        """Ours: the same problem, one case a seed."""
        case = (self.problem, self.options, device)
        return [each for each in CASES if (each.problem, each.options, each.device) == case]

    def to_problem(self, device: str) -> Problem:
        """What theirs is measured on."""
        problem = replace(self.cases(device)[0].to_problem(), libraries="any")
        if not self.reference:
            return problem
        return replace(problem, name=self.reference, source=(PARTS / self.reference).read_text())

    def to_kernel(self, clone: Path) -> Kernel:
        """Theirs between our lines. Raises UsageError when the clone lacks it."""
        if not (clone / self.file).is_file():
            raise UsageError(f"{self.clone}={clone} has no {self.file}")
        files = [PARTS / f"before_{self.clone}.py", clone / self.file]
        files += [PARTS / self.after] if self.after else []
        source = "\n".join(file.read_text() for file in files)
        return Kernel(source=source, language=language_of(source))


A, P = "autokernel", "published"
SQUARE = (HALF, "problem.sizes.batch=8192", "problem.sizes.features=8192")
VOCABULARY = (HALF, "problem.sizes.features=50257")
SPILLS = "a row in one program of 4 warps: spills"
PEERS = (
    Peer(A, "kernels/softmax.py", "level1/softmax", after="plain.py", note=SPILLS),
    Peer(P, "Softmax/src.py", "level1/softmax"),
    Peer(A, "kernels/softmax.py", "level1/softmax", SQUARE, "plain.py"),
    Peer(A, "kernels/softmax.py", "level1/softmax", VOCABULARY, "plain.py", SPILLS),
    Peer(
        *(A, "kernels/layernorm.py", "level1/layernorm", (), "layernorm.py"),
        note="a row of 2^22 in one block, Triton takes 2^20: cannot compile",
    ),
    Peer(
        *(P, "LayerNorm/src.py", "level1/layernorm"),
        note="variance as the mean of squares less the square of the mean",
    ),
    Peer(P, "LayerNorm2/src.py", "level1/layernorm", note="by Welford, one cooperative launch"),
    Peer(A, "kernels/layernorm.py", "library/layernorm", after="layernorm.py"),
    Peer(A, "kernels/rmsnorm.py", "library/rmsnorm", after="rmsnorm.py"),
    Peer(
        A, "kernels/reduce.py", "library/sum_rows", after="plain.py", note="float32 sums, then torch's cast"
    ),
    Peer(
        *(A, "kernels/cross_entropy.py", "library/cross_entropy", (), "cross_entropy.py"),
        note=f"{SPILLS}; a cast in the place of its mean",
    ),
    Peer(
        *(A, "kernels/rotary_embedding.py", "library/rotary", (), "plain.py"),
        note="turns neighbours, not halves: judged by a reference that does; repeats the angles for each head",
        reference="rotary_neighbours.py",
    ),
    Peer(A, "kernels/matmul.py", "level1/matmul", after="plain.py", note="TF32: not float32's accuracy"),
    Peer(P, "MatmulFP32/src.py", "level1/matmul", note="float16 in two parts, four products"),
    Peer(A, "kernels/matmul.py", "level1/matmul", (HALF,), "plain.py"),
    Peer(P, "Conv2D/src.py", "level1/conv2d", after="convolution.py", note="float16 products"),
    Peer(
        *(P, "Conv2D_ReLU_MaxPool/src.py", "level2/conv2d_relu_maxpool"),
        after="convolution.py",
        note="float16 products",
    ),
    Peer(
        *(A, "kernels/fused_mlp.py", "library/swiglu", (), "swiglu.py"),
        note="its last product is the library's",
    ),
    Peer(A, "kernels/flash_attention.py", "library/attention", after="plain.py"),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line sets."""

    autokernel: str = ""
    published: str = ""
    only: str = ""
    limit_s: float = 540.0
    out: str = ""
    device: str = "cuda"


def main(arguments: Sequence[str]) -> int:
    """Compares; returns the exit status."""
    options = parse(arguments)
    clones = {A: options.autokernel, P: options.published}
    words = options.only.split(",")
    chosen = [peer for peer in PEERS if clones[peer.clone] and any(word in peer.name for word in words)]
    if not chosen:
        raise UsageError(f"no kernel to compare: autokernel=CLONE or published=CLONE, only={options.only}")
    work = {peer: peer.to_kernel(Path(clones[peer.clone])) for peer in chosen}
    comparison = Comparison(options)
    asyncio.run(comparison.run(work))
    missing = [peer.name for peer in chosen if peer.name not in comparison.printed]
    print("".join(f"not measured in {options.limit_s:g} s: {name}\n" for name in missing), end="")
    return 1 if missing or not all(row["seed"] for row in comparison.rows) else 0


def parse(arguments: Sequence[str]) -> Options:
    """`key=value` for each field of Options. Raises UsageError."""
    given: dict[str, Any] = dict(argument.partition("=")[::2] for argument in arguments)
    if unknown := given.keys() - Options.__dataclass_fields__.keys():
        raise UsageError(f"unknown key {min(unknown)}; there are {', '.join(Options.__dataclass_fields__)}")
    try:
        return Options(**given | {"limit_s": float(given.get("limit_s", Options.limit_s))})
    except ValueError as error:
        raise UsageError(f"limit_s={given['limit_s']} is no number of seconds") from error


class Comparison:
    """One session on one machine, and what came of it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        of_any = ["problem=level1/softmax", "kernel=none", *SETTINGS]
        settings = build(compose_config("evaluate", of_any).evaluator)
        self._host = LocalHost(settings=settings, on_gpu=options.device == "cuda")
        self._pool = Pool(self._host)
        self._tasks: dict[str, asyncio.Task[Evaluation]] = {}
        self._facts: dict[str, str] = {}
        self.rows: list[dict[str, Any]] = []
        self.printed: set[str] = set()

    async def run(self, work: dict[Peer, Kernel]) -> None:
        """Builds beside measurements; what is timed outside the evaluator comes last, alone on the device.
        Raises UsageError where nothing can be measured."""
        try:
            async with asyncio.timeout(self._options.limit_s):
                self._facts = await self._pool.describe(next(iter(work)).to_problem(self._options.device))
                print(" ".join(f"{key}={value}" for key, value in self._facts.items()))
                print(f"{'eager':>9} {'ours':>9} {'theirs':>9} {'ratio':>6}  case, theirs; ours", flush=True)
                judged = await asyncio.gather(*(self._judge(peer, work[peer]) for peer in work))
                for peer, row in zip(work, judged, strict=True):
                    if row["theirs_ms"] is None:
                        await self._time_outside(peer, work[peer], row)
        except TimeoutError:
            for pid in sandbox.descendants(os.getpid()):  # threads that wait for them come to their end
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        except WorkerBroken as error:
            raise UsageError(str(error)) from error
        finally:
            self._pool.close()

    async def _judge(self, peer: Peer, kernel: Kernel) -> dict[str, Any]:
        """The row by the evaluator; `seed` is "" when none of ours is correct."""
        cases = peer.cases(self._options.device)
        *ours, theirs = await asyncio.gather(
            *(self._evaluate(case.to_problem(), case.to_kernel()) for case in cases),
            self._evaluate(peer.to_problem(self._options.device), kernel),
        )
        best, case = min(zip(ours, cases, strict=True), key=lambda pair: kernel_ms(pair[0]) or math.inf)
        timing = best.timing or theirs.timing
        row = {
            "name": peer.name,
            "note": peer.note,
            "by": "evaluator",
            "eager_ms": timing.eager_ms if timing else None,
            "seed": case.seed if best.timing else "",
            "ours_ms": kernel_ms(best),
            "theirs_ms": kernel_ms(theirs),
            "status": f"{theirs.status.value} {theirs.rule}".strip(),
            "ours": {case.seed: found.to_json() for case, found in zip(cases, ours, strict=True)},
            "theirs": theirs.to_json(),
        }
        self.rows.append(row)
        self._keep(row)
        return row

    def _evaluate(self, problem: Problem, kernel: Kernel) -> asyncio.Task[Evaluation]:
        """Once for several rows."""
        key = f"{problem.id} {kernel.id}"
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._pool.evaluate(problem, kernel))
        return self._tasks[key]

    async def _time_outside(self, peer: Peer, kernel: Kernel, row: dict[str, Any]) -> None:
        """Puts the times by events into the row, where there are any."""
        theirs = await self._outside(peer.to_problem(self._options.device), kernel)
        row |= {"by": "events", "outside": theirs, "theirs_ms": theirs.get("ms")}
        case = next((each for each in peer.cases(self._options.device) if each.seed == row["seed"]), None)
        if case and row["theirs_ms"]:
            row["ours_ms"] = (await self._outside(case.to_problem(), case.to_kernel())).get("ms")
        self._keep(row)

    async def _outside(self, problem: Problem, kernel: Kernel) -> dict[str, Any]:
        """`ms` and `error`, the distance from the reference's output relative to its norm; or `failed`."""
        architecture = self._facts.get("architecture", "")
        built = await self._host.build(problem, kernel, architecture)  # the cache has it
        with (
            tempfile.TemporaryDirectory() as root,
            scratch_folder(problem, kernel, Path(root), built.archive) as scratch,
        ):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(Path(__file__).resolve()), "outside", str(scratch)),
                env={**os.environ, **sandbox.scratch_variables(scratch), **build_environment(architecture)},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            about = json.dumps(asdict(problem)).encode()
            try:
                said, errors = await asyncio.wait_for(process.communicate(about), OUTSIDE_TIMEOUT_S)
            except TimeoutError:
                return {"failed": f"not done after {OUTSIDE_TIMEOUT_S:g} s"}
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        if process.returncode:
            return {"failed": (errors.decode(errors="replace").split("\n")[-2:])[0][:200]}
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return found

    def _keep(self, row: dict[str, Any]) -> None:
        """Prints what is complete, writes all."""
        if row["by"] == "events" or row["theirs_ms"]:
            self.printed.add(row["name"])
            print(line_of(row), flush=True)
        if self._options.out:
            about = {"facts": self._facts, "rows": self.rows}
            Path(self._options.out).write_text(json.dumps(about, indent=1) + "\n")


def kernel_ms(found: Evaluation) -> float | None:
    """The kernel's time, None where it has none."""
    return found.timing.kernel_ms if found.timing else None


def line_of(row: dict[str, Any]) -> str:
    """A line of the table."""
    eager, ours, theirs = row["eager_ms"], row["ours_ms"], row["theirs_ms"]
    times = " ".join(f"{ms:9.4f}" if ms else f"{'-':>9}" for ms in (eager, ours, theirs))
    ratio = f"{ours / theirs:6.2f}" if ours and theirs else f"{'-':>6}"
    words = [f"{times} {ratio}  {row['name']}", row["seed"] or "NONE OF OURS IS CORRECT"]
    if outside := row.get("outside"):
        error = f"error {outside['error']:.1e}, times by events" if "ms" in outside else outside["failed"]
        words.append(f"wrong: {row['status']}, {error}")
    return "; ".join(filter(None, [*words, row["note"]]))


def time_outside(scratch: Path) -> None:
    """Times the kernel in this folder, for the problem on standard input; prints JSON."""
    import torch
    from torch.utils.benchmark import Timer

    problem = Problem(**json.load(sys.stdin))
    reference = load_module(problem.source, problem.overrides)
    where: Any = {"seed": SEED, "device": problem.device, "dtype": problem.dtype}
    values, inputs = init_inputs(reference, SEED), make_inputs(reference, **where)
    model = make_model(import_candidate(scratch / "kernel.py"), "ModelNew", values, **where)
    with torch.no_grad():
        wanted = make_model(reference, "Model", values, **where)(*inputs).float()
        error = float((model(*inputs).float() - wanted).norm() / wanted.norm())
        if problem.device == "cuda":
            from triton.testing import do_bench

            ms = do_bench(lambda: model(*inputs), warmup=100, rep=1000, return_mode="median")
        else:
            ms = Timer("model(*inputs)", globals=locals()).blocked_autorange().median * 1e3
    print(f"\n{json.dumps({'ms': ms, 'error': error})}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["outside"]:
        sys.exit(time_outside(Path(sys.argv[2])))
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"peers.py: {error}")
