from __future__ import annotations

import pytest

from evaluators.base.nearest import nearest


@pytest.mark.parametrize(
    ("name", "found"), [("sofmax", "softmax"), ("softmax", "softmax"), ("zzz", None), ("", None)]
)
def test_the_most_similar_name_is_found(name: str, found: str | None) -> None:
    assert nearest(name, ["conv2d", "softmax", "matmul"]) == found
