"""The text of a diagnosis."""

from __future__ import annotations

import pytest

from evaluators.records.diagnosis import Diagnosis, Finding, KernelTime, Level, WarpStall


def finding(name: str = "spills", share: float = 0.5) -> Finding:
    return Finding(
        name=name, evidence="12 of 13", confidence=Level.STATIC, helps="a smaller tile", share=share
    )


def test_lines_are_never_cut() -> None:
    diagnosis = Diagnosis(
        findings=tuple(finding() for _ in range(80)),
        stalls=(WarpStall(reason="waiting at a barrier", share=0.3),),
    )
    whole = diagnosis.text(10**6).splitlines()
    for characters in (100, 333, 1000, 4000):
        text = diagnosis.text(characters)
        *kept, last = text.splitlines()
        assert len(text) <= characters
        assert kept == whole[: len(kept)]
        assert last == f"[… {len(whole) - len(kept)} more lines]"


def test_a_profile_without_findings_says_so() -> None:
    text = Diagnosis(reached=("static",), missing={"counters": "ncu is missing"}).text()
    assert text == "Profile; levels: static.\nNo counters: ncu is missing.\nBottlenecks: no rule found one."


def test_many_kernels_are_summed() -> None:
    times = tuple(KernelTime(kernel=f"k{n}", launches=1, mean_us=10) for n in range(9))
    assert "Kernel: 3 more, 30 us per call together." in Diagnosis(times=times).text()


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        finding(share=share)
