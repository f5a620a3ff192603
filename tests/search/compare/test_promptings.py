"""What prompts tell is a policy with a name, and an arm of a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluators.app.command import compose_config
from evaluators.app.config import options_of
from evaluators.base.usage_error import UsageError
from search.compare import __main__ as compare
from search.run.config import RunConfig

SEARCH = ["problem=level1/softmax", "device=cpu", "proposer=llm", "budget.calls=9"]


def test_a_policy_leaves_out_what_its_name_says() -> None:
    policies = {
        name: compose_config(RunConfig, [*SEARCH, f"prompting={name}"]).prompting
        for name in options_of("prompting")
    }
    assert set(policies) == {"full", "bare", "no_reflection", "no_mistakes", "no_diagnoses"}
    full, bare = policies.pop("full"), policies.pop("bare")
    assert all(full.values())
    assert full.keys() == bare.keys()
    assert not any(bare.values())
    for name, policy in policies.items():
        assert policy == {**full, name.removeprefix("no_"): False}


def test_each_policy_is_an_arm_that_sets_the_proposers_keys(tmp_path: Path) -> None:
    given = [*SEARCH, "promptings=[full,no_mistakes]", 'arms.plain=["prompting.hardware=false"]', "seeds=1"]
    plan = compare.plan(compose_config(compare.CompareConfig, given), given, tmp_path)
    told = {each.arm: compose_config(RunConfig, each.overrides).proposer for each in plan.searches}
    assert {arm: (each.mistakes, each.hardware) for arm, each in told.items()} == {
        "full": (True, True),
        "no_mistakes": (False, True),
        "plain": (True, False),
    }


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["proposer=playbook", "promptings=[full,bare]"], "promptings=.* are for language models"),
        (["strategies=[beam]", "promptings=[bare]", "arms.beam=[]"], "two arms have the same name"),
    ],
)
def test_what_cannot_be_compared(overrides: list[str], says: str, tmp_path: Path) -> None:
    given = [*SEARCH, *overrides]
    with pytest.raises(UsageError, match=says):
        compare.plan(compose_config(compare.CompareConfig, given), given, tmp_path)
