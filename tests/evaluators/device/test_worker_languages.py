"""On a real GPU: the kernel on each language's page is right, its work is seen as its own, and cheats through
each language are caught."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from evaluators.build.builder import build
from evaluators.device.settings import Settings
from evaluators.device.worker import Worker
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.languages import LANGUAGES, language_of
from evaluators.records.problem import Kernel, Problem
from evaluators.records.timing import Plan
from tests.evaluators import languages
from tests.evaluators.languages import PACKAGES, around, example

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

ON_GPU = [each.name for each in LANGUAGES.values() if each.device == "cuda"]
DECOY = """
super().forward(x[:1].clone())
return REFERENCE
"""
REFERENCES = {languages.SOFTMAX: "torch.softmax(x, -1)"}
KEEPS = """
if x.data_ptr() not in self.kept:
    self.kept[x.data_ptr()] = super().forward(x)
return self.kept[x.data_ptr()]
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


@functools.cache
def architecture() -> str:
    """This GPU's; a subprocess finds it, because no CUDA context may exist where processes are forked."""
    import subprocess
    import sys

    program = "import torch; print('%d.%d' % torch.cuda.get_device_capability())"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip()


def judge(worker: Worker, source: str, problem: Problem) -> Evaluation:
    kernel = Kernel(source=source, language=language_of(source))
    facts = worker.open(problem)
    built = build(problem, kernel, root=worker._root, architecture=facts["architecture"], timeout_s=180)
    if built.status is not None:
        return Evaluation(status=built.status, log=built.log)
    return worker.measure(problem, kernel, built.archive)


def need(language: str) -> None:
    if language in PACKAGES:
        languages.need(language, architecture())


@pytest.mark.parametrize("language", ON_GPU)
def test_the_example_is_right_and_its_own_work(worker: Worker, language: str) -> None:
    need(language)
    policy = "no_library" if LANGUAGES[language].own_libraries else "any"
    found = judge(worker, example(language), languages.problem(language, libraries=policy))
    assert found.status is Status.CORRECT, found.log
    print(f"{language}: {found.speedup:.2f}x, own share {found.own_share}")  # read with pytest -s
    if policy == "no_library":
        assert found.own_share == 1.0


@pytest.mark.parametrize("language", ON_GPU)
def test_a_joined_side_stream_is_right(worker: Worker, language: str) -> None:
    need(language)
    found = judge(worker, around(language, JOINED), languages.problem(language))
    assert found.status is Status.CORRECT, found.log


@pytest.mark.parametrize("language", ON_GPU)
@pytest.mark.parametrize("body", [SIDE_STREAM, KEEPS, LEAVES_ROWS_OUT], ids=["stream", "keeps", "rows"])
def test_a_cheat_is_caught(worker: Worker, language: str, body: str) -> None:
    need(language)
    found = judge(worker, around(language, body), languages.problem(language))
    assert found.status in CAUGHT, f"{found.status} {found.speedup}: {found.log}"


@pytest.mark.parametrize("language", ON_GPU)
def test_the_librarys_work_is_not_its_own(worker: Worker, language: str) -> None:
    need(language)
    source = around(language, DECOY.replace("REFERENCE", REFERENCES.get(language, "x * self.factor")))
    found = judge(worker, source, languages.problem(language, libraries="no_library"))
    assert (found.status, found.rule) == (Status.REJECTED, "library"), found.log
    if not LANGUAGES[language].own_libraries:
        assert found.log.startswith("it needs torch's compiler"), found.log
