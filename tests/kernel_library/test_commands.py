"""The library's commands: what they say, what they change, and with which exit status."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evaluators.records.evaluation import Evaluation, Roofline, Status
from kernel_library import best
from kernel_library.add import __main__ as add
from kernel_library.catalogue.entry import Entry
from kernel_library.catalogue.library import FolderLibrary
from kernel_library.list import __main__ as list
from kernel_library.show import __main__ as show
from kernel_library.verify import __main__ as verify
from tests.evaluators.device.kernels import HONEST, REFERENCE, forward
from tests.kernel_library.entries import entry, reference, shipped

QUICK = (
    "evaluator.threads=1",
    "evaluator.max_calls=8",
    "evaluator.compile_mode=",
    "evaluator.thorough_plan.block_ms=4",
    "evaluator.thorough_plan.precision=0.2",
    "evaluator.thorough_plan.max_s=0.2",
)
Main = Callable[[Sequence[str]], int]
pytestmark = pytest.mark.usefixtures("no_seeds")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three entries: a softmax and a slower one for a GPU, a sum for a CPU."""
    library = FolderLibrary(tmp_path / "library", seeds=None)
    library.add(entry(shipped("level1/softmax"), "fast = 1\n", 3.0, language="cuda"))
    library.add(entry(shipped("level1/softmax"), "slow = 1\n", 1.5))
    library.add(entry(reference("a[0].sum(-1)", "torch.randn(4, 4)", device="cpu"), "def sum(x): ...\n"))
    return tmp_path / "library"


def ids(root: Path) -> dict[str, str]:
    """By the first word of the source."""
    return {each.kernel.source.split()[0]: each.id for each in FolderLibrary(root).entries()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([], {"fast", "slow", "def"}),
        (["op=softmax"], {"fast", "slow"}),
        (["language=cuda"], {"fast"}),
        (["architecture=9.0"], {"fast", "slow"}),
        (["architecture=cpu", "dtype=float32"], {"def"}),
        (["problem=level1/softmax", "language=triton"], {"slow"}),
        (["dtype=float64"], set()),
    ],
    ids=lambda value: " ".join(sorted(value)),
)
def test_list_filters(
    filters: Sequence[str], wanted: set[str], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list.main([f"library.root={root}", *filters]) == 0
    said = capsys.readouterr().out
    assert {word for word, id in ids(root).items() if id in said} == wanted
    assert ("no entries" in said) == (not wanted)


@pytest.mark.slow
def test_list_says_what_is_best(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    list.main([f"library.root={root}", "op=softmax"])
    lines = capsys.readouterr().out.splitlines()
    fast, slow = (next(line for line in lines if ids(root)[word] in line) for word in ("fast", "slow"))
    known = ("level1/softmax", "cuda", "NVIDIA H200", "3.00x", "1.50x", "50%", "1.0e-07", "best")
    assert [word for word in known if word not in fast] == []
    assert "best" not in slow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("floor_ms", "shown"), [(0.5, "50%"), (1.0, "100%"), (1.004, "100%"), (1.02, ">100%"), (1.6, ">100%")]
)
def test_list_shows_no_share_above_the_roofline(
    floor_ms: float, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel takes 1 ms; a floor above that only shows that the measured peaks were too low."""
    known = entry(shipped("level1/softmax"))
    (measurement,) = known.measurements
    roofline = Roofline(bytes=1000, operations=0, floor_ms=floor_ms, bound="memory")
    found = replace(measurement.evaluation, roofline=roofline)
    FolderLibrary(tmp_path, seeds=None).add(
        replace(known, measurements=(replace(measurement, evaluation=found),))
    )
    assert list.main([f"library.root={tmp_path}"]) == 0
    assert [word for word in capsys.readouterr().out.split() if word.endswith("%")] == [shown]
    assert list.main(["--help"]) == 0
    assert "`>100%`: the" in capsys.readouterr().out


@pytest.mark.slow
def test_show_gives_card_and_source(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    id = ids(root)["fast"]
    assert show.main([id[:6], f"library.root={root}"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"# {id}\n")
    assert "op: softmax" in said
    assert said.endswith("# kernel.py\n\nfast = 1\n\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("main", "arguments", "said"),
    [
        (list.main, ["opp=softmax"], "did you mean op?"),
        (list.main, ["language=tritn"], "did you mean triton?"),
        (list.main, ["dtype=half"], "dtype is half"),
        (list.main, ["library.root=nowhere://x"], "cannot be opened"),
        (list.main, ["softmax"], "key=value"),
        (show.main, [], "give one entry"),
        (show.main, ["sum", "softmax"], "give one entry"),
        (show.main, ["zzzz"], "unknown entry zzzz"),
        (show.main, [""], "is ambiguous"),
        (add.main, ["problem=level1/softmax"], "kernel is not set"),
        (add.main, ["problem=level1/softmax", "kernel=nowhere.py"], "cannot be read"),
        (add.main, ["problem=level1/softmx", "kernel=k.py"], "did you mean level1/softmax?"),
        (verify.main, ["entry=zzzz"], "unknown entry zzzz"),
        (verify.main, ["device=cud"], "did you mean cuda?"),
    ],
    ids=lambda value: value.__module__ if callable(value) else str(value),
)
def test_a_wrong_call_costs_one_line(
    main: Main, arguments: Sequence[str], said: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = [] if any(each.startswith("library.root") for each in arguments) else [f"library.root={root}"]
    assert main([*arguments, *at]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert len(captured.err.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_kernel_is_added_verified_and_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, kernel = tmp_path / "library", tmp_path / "kernel.py"
    (tmp_path / "reference.py").write_text(REFERENCE)
    problem = ["problem=file", f"problem.path={tmp_path / 'reference.py'}", "problem.libraries=any"]
    call = [*problem, f"kernel={kernel}", "device=cpu", f"library.root={root}", *QUICK]

    kernel.write_text(f"{HONEST}\ndef tanhs(x, weight):\n    return torch.tanh(x @ weight)\n")
    assert add.main([*call, "function=tanh"]) == 2
    assert f"function=tanh is not defined in kernel={kernel}" in capsys.readouterr().err
    assert add.main([*call, "shapes=[...x8,8y]"]) == 2
    assert "shape pattern '8y': invalid size '8y'" in capsys.readouterr().err
    assert add.main([*call, "dtypes=[float]"]) == 2
    assert "dtypes has float; choose from" in capsys.readouterr().err
    assert add.main([*call, "library.min_speedup=100"]) == 1
    assert "not added: its speedup of" in capsys.readouterr().out.splitlines()[-1]
    assert FolderLibrary(root, seeds=None).entries() == []
    call.append("library.min_speedup=0")  # a kernel that is as fast as eager
    wide = ["shapes=[...x128,*x1..]", "dtypes=[float32,bfloat16]", "op=tanhs"]
    assert add.main([*call, "licence=MIT", "tags=[small, mine]", *wide]) == 0
    (added,) = FolderLibrary(root, seeds=None).entries()
    assert capsys.readouterr().out.endswith(f"{added.id}: added\n")
    assert (added.op, added.licence, added.tags) == ("tanhs", "MIT", ("small", "mine"))
    assert (added.shapes, added.dtypes) == (("...x128", "*x1.."), ("float32", "bfloat16"))
    (measurement,) = added.measurements
    assert measurement.problem.source == REFERENCE
    assert measurement.evaluation.correctness is not None
    with pytest.raises(LookupError, match="none at all"):  # it holds weights: no plain function
        best("tanhs", like=torch.ones(128, 128), root=root)

    card = (root / added.id / "card.yaml").read_text()
    check = [f"entry={added.id}", "device=cpu", f"library.root={root}", *QUICK]
    monkeypatch.setattr(
        "kernel_library.catalogue.entry.SLOWER", 0.0
    )  # a busy machine may be slower than it was
    assert verify.main(check) == 0
    assert capsys.readouterr().out.endswith("1 of 1 confirmed\n")
    (found,) = FolderLibrary(root, seeds=None).entries()
    assert [each.evaluation.status for each in found.checks] == ["correct"]
    assert (root / added.id / "card.yaml").read_text() == card


@pytest.mark.slow
def test_a_kernel_that_is_not_correct_is_not_added(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def evaluate(
        *of: object, thorough: bool, repeat: int = 1, **others: object
    ) -> Sequence[Evaluation]:
        assert (thorough, repeat) == (True, 1)
        return [Evaluation(status=Status.INCORRECT)]

    monkeypatch.setattr(add, "evaluate", evaluate)
    before = ids(root)
    (root / "k.py").write_text("class ModelNew: ...")
    assert (
        add.main(["problem=level1/softmax", f"kernel={root / 'k.py'}", f"library.root={root}", "device=cpu"])
        == 1
    )
    assert ids(root) == before


@pytest.mark.slow
def test_verify_marks_unconfirmed_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "library"

    def keep(reference: str, source: str, speedup: float = 1.0) -> Entry:
        problem = shipped("level1/softmax", device="cpu", libraries="any")
        known = entry(type(problem)(name="file/x", source=reference), source, speedup)
        FolderLibrary(root, seeds=None, min_speedup=0).add(known)
        return known

    wrong = keep(REFERENCE, forward("return x"))
    unfit = keep(REFERENCE.replace("return x\n", "raise ValueError('seven')\n"), HONEST)
    gpu = entry(shipped("level1/softmax"))
    FolderLibrary(root, seeds=None).add(gpu)
    assert verify.main(["device=cpu", f"library.root={root}", *QUICK]) == 1
    said = capsys.readouterr().out
    lines = {known.id: next(x for x in said.splitlines() if known.id in x) for known in (wrong, unfit)}
    assert "incorrect" in lines[wrong.id]
    assert "not measured: file/x: the reference cannot be run: ValueError: seven" in lines[unfit.id]
    assert gpu.id not in said
    assert said.endswith("0 of 2 confirmed; 1 are for other devices\n")
    checked = {each.id: each for each in FolderLibrary(root, seeds=None).entries()}
    assert not checked[wrong.id].runs_on("cpu")
    assert checked[unfit.id].checks == ()
    capsys.readouterr()
    list.main([f"library.root={root}", "architecture=cpu"])
    assert "incorrect" in capsys.readouterr().out
    show.main([wrong.id, f"library.root={root}"])
    assert ": incorrect\n" in capsys.readouterr().out
