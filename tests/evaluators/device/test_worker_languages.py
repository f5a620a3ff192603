"""On a real GPU: the kernel on each language's page is right, its work is seen as its own, and cheats through
each language are caught."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evaluators.base.languages import LANGUAGES, language_of
from evaluators.build.builder import build
from evaluators.device.settings import Settings
from evaluators.device.worker import Worker
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.records.timing import Plan
from tests.evaluators import languages
from tests.evaluators.languages import OWN_RUNTIME, PACKAGES, around, example, need

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

ON_GPU = [each.name for each in LANGUAGES.values() if each.device == "cuda"]
DECOY = """
super().forward(x[:1].clone())
return x * self.factor
"""
SIDE_STREAM = """
self.stream = self.stream or torch.cuda.Stream()
with torch.cuda.stream(self.stream):
    return super().forward(x)
"""
JOINED = """
self.stream = self.stream or torch.cuda.Stream()
self.stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(self.stream):
    y = super().forward(x)
torch.cuda.current_stream().wait_stream(self.stream)
return y
"""
LEAVES_ROWS_OUT = """
return torch.cat([super().forward(x[:-8].clone()), x[-8:]])
"""
CAUGHT = (Status.REJECTED, Status.INCORRECT)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    plan = Plan(block_ms=10.0, precision=0.05, max_s=0.5)
    worker = Worker(
        root=tmp_path_factory.mktemp("scratch"), settings=Settings(timeout_s=60, compile_mode="", plan=plan)
    )
    yield worker
    worker.close()


def judge(worker: Worker, source: str, problem: Problem) -> Evaluation:
    kernel = Kernel(source=source, language=language_of(source))
    facts = worker.open(problem)
    if kernel.language in PACKAGES:
        need(kernel.language, facts["architecture"])
    built = build(problem, kernel, root=worker._root, architecture=facts["architecture"], timeout_s=180)
    if built.status is not None:
        return Evaluation(status=built.status, log=built.log)
    return worker.measure(problem, kernel, built.archive)


@pytest.mark.parametrize("language", ON_GPU)
def test_the_example_is_right_and_its_own_work(worker: Worker, language: str) -> None:
    policy = "no_library" if LANGUAGES[language].own_libraries else "any"
    found = judge(worker, example(language), languages.problem(language, libraries=policy))
    assert found.status is Status.CORRECT, found.log
    print(f"{language}: {found.speedup:.2f}x, own share {found.own_share}")  # read with pytest -s
    if policy == "no_library":
        assert found.own_share == 1.0


@pytest.mark.parametrize("language", OWN_RUNTIME)
def test_a_joined_side_stream_is_right(worker: Worker, language: str) -> None:
    found = judge(worker, around(language, JOINED), languages.problem(language))
    assert found.status is Status.CORRECT, found.log


@pytest.mark.parametrize("language", OWN_RUNTIME)
@pytest.mark.parametrize("body", [SIDE_STREAM, LEAVES_ROWS_OUT], ids=["stream", "rows"])
def test_a_cheat_is_caught(worker: Worker, language: str, body: str) -> None:
    found = judge(worker, around(language, body), languages.problem(language))
    assert found.status in CAUGHT, f"{found.status} {found.speedup}: {found.log}"


@pytest.mark.parametrize("language", OWN_RUNTIME)
def test_the_librarys_work_is_not_its_own(worker: Worker, language: str) -> None:
    found = judge(worker, around(language, DECOY), languages.problem(language, libraries="no_library"))
    assert (found.status, found.rule) == (Status.REJECTED, "library"), found.log
    if not LANGUAGES[language].own_libraries:
        assert found.log.startswith("it needs torch's compiler"), found.log
