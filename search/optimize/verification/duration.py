"""How long a verification takes, roughly: known before a budget is spent, and the measure of its progress."""

from __future__ import annotations

from search.optimize.verification.interleaved import BLOCK_MS
from search.optimize.verification.launcher import TUNED, VerificationTask
from search.optimize.verification.loss_curves import NOISY_RUNS
from search.optimize.verification.record import COMPILE, GRAPH, OPTIMIZED, OPTIMIZED_GRAPH, REDUCED

START_S = 8.0
"""Starting the process and importing torch."""
FORWARDS = 12
"""Forwards, some of them in float64, that compare one set of weights and inputs."""
COMPILE_S, COMPILE_CALL_S = 8.0, 0.06
"""Compiling a model: in any case, and for each operator call."""
COMPILE_KERNEL_S = 6.0
"""Compiling a kernel's operators alone, and the call of the kernel."""


def expected_s(task: VerificationTask, *, kernels: int, forward_ms: float, calls: int) -> float:
    """The seconds of a verification with this number of kernels. The time of max-autotune is not known.

    Args:
        task: what is verified.
        kernels: the kernels that are installed.
        forward_ms: the time of a forward, in training with the backward pass; the mean of all shapes.
        calls: the operator calls of a forward.
    """
    shapes = max(1, len(task.shapes or ()))
    block_s = max(BLOCK_MS[task.device], forward_ms) / 1e3 * shapes
    reading_s = task.turns * block_s
    places = sum(way in task.ways for way in (OPTIMIZED, OPTIMIZED_GRAPH))
    compiled = [way for way in task.ways if COMPILE in way or REDUCED in way]
    each_s = places * 2 * reading_s + (COMPILE_KERNEL_S + 2 * reading_s if compiled else 0.0)
    compare_s = task.seeds * FORWARDS * shapes * forward_ms / 1e3
    if task.training is not None:
        compare_s += (NOISY_RUNS + 2) * task.training.steps * forward_ms / 1e3
    ways = [way for way in task.ways if way != TUNED]
    compile_s = len(compiled) * shapes * (COMPILE_S + COMPILE_CALL_S * calls)
    return START_S + compare_s + kernels * each_s + len(ways) * reading_s + compile_s


def plan_line(task: VerificationTask, seconds: float, limit_s: float) -> str:
    """What a verification will do, how long it takes, and what bounds it."""
    graphs = any(GRAPH in way for way in task.ways)
    compiled = "torch.compile" if any(COMPILE in way for way in task.ways) else ""
    ways = ", ".join(filter(None, ["eager", "CUDA graphs" if graphs else "", compiled]))
    trains = task.training
    steps = f", to train it for {trains.steps} steps" if trains is not None else ""
    more = "; max-autotune can add many minutes (compile=default leaves it out)" if TUNED in task.ways else ""
    return (
        f"about {seconds:.0f} s to compare the model on {task.seeds} sets of weights and inputs{steps} "
        f"and to time it in {len(task.ways)} ways ({ways}), at most verify_s={limit_s:.0f}{more}"
    )
