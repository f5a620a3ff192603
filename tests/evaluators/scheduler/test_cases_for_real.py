"""Real kernels over several cases, on this machine's CPU."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel
from evaluators.reference.loading import make_problem
from evaluators.scheduler.local_host import LocalHost
from evaluators.scheduler.pool import Pool
from tests.evaluators.device.kernels import SETTINGS
from tests.evaluators.records.test_cases import SOURCE

REFERENCE = (
    SOURCE
    + """
def get_cases():
    return [
        {"sizes": {"columns": 64}},
        {"sizes": {"columns": 96}, "layout": "transposed"},
        {"sizes": {"columns": 80}, "dtype": "float64", "weight": 0},
    ]
"""
)
RIGHT = REFERENCE.replace("class Model", "class ModelNew")
DECLINES = RIGHT + "\ndef supports(x):\n    return x.is_contiguous()\n"
CONTIGUOUS = RIGHT.replace(
    "torch.softmax(x, -1)", "torch.softmax(x.as_strided(x.shape, (x.shape[1], 1)), -1)"
)
LISTED = RIGHT.replace("torch.softmax(x, -1)", "torch.softmax(x, -1) * (x.shape[1] in (64, 96, 80))")

FAULTY = RIGHT.replace("torch.softmax(x, -1)", "torch.softmax(x, -1) * (1 + 0.01 * (x.shape[1] == 80))")


@pytest.mark.slow
def test_kernels_over_cases(tmp_path: Path) -> None:
    problem = make_problem(
        REFERENCE, where="rows.py", name="file/rows", sizes={"rows": 32}, libraries="any", floor=False
    )

    async def verdicts() -> list[Evaluation]:
        with Pool(LocalHost(settings=SETTINGS, on_gpu=False)) as pool:
            sources = (RIGHT, DECLINES, CONTIGUOUS, LISTED, FAULTY)
            kernels = [Kernel(source=each, language="cpp") for each in sources]
            return await asyncio.gather(*(pool.evaluate(problem, each) for each in kernels))

    right, declines, contiguous, listed, faulty = asyncio.run(verdicts())
    assert right.status is Status.CORRECT, right.log
    assert len(right.cases) == 5
    assert right.timing is not None

    assert declines.status is Status.CORRECT, declines.log
    assert [each.evaluation.status for each in declines.cases[:3]] == [
        Status.CORRECT,
        Status.DECLINED,
        Status.CORRECT,
    ]

    assert contiguous.status is Status.INCORRECT, contiguous.log
    assert [each.passes for each in contiguous.cases] == [True, False, True]

    assert listed.status is Status.INCORRECT, listed.log
    assert [each.passes for each in listed.cases[:3]] == [True, True, True]
    assert listed.cases[-1].held_out

    assert faulty.status is Status.INCORRECT, faulty.log
    assert [each.passes for each in faulty.cases] == [True, True, False]
