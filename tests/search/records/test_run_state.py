from __future__ import annotations

from evaluators.records.evaluation import Status
from search.records.events import (
    RoundClosed,
    VariantEvaluated,
    VariantWritten,
)
from search.records.run_state import rebuild
from search.records.tree import Variant
from tests.search.fakes import failed, kernel
from tests.search.small_run import events_of_a_run


def test_rebuild_knows_what_is_left_to_do() -> None:
    events = events_of_a_run()
    state = rebuild(events)
    assert list(state.proposed) == [0]
    assert len(state.proposed[0]) == 3
    assert set(state.verdicts) == {kernel(1).id, kernel(2).id}
    assert state.evaluations == 2
    assert state.used_s == 3.0
    assert state.finished is None
    closed = rebuild([*events, RoundClosed(at_s=4.0, round=1, best=None, evaluations=2)])
    assert (closed.tree.rounds_closed, closed.proposed) == (1, {})


def test_our_own_failures_are_no_verdicts() -> None:
    events = events_of_a_run()[:-2]
    variant = next(e.variant for e in events if isinstance(e, VariantWritten))
    ours = Variant(
        kernel=variant.kernel,
        idea=variant.idea,
        parent="",
        round=1,
        evaluation=failed(Status.INFRASTRUCTURE_ERROR),
    )
    state = rebuild([*events, VariantEvaluated(at_s=3.0, variant=ours)])
    assert state.verdicts == {}
    assert state.evaluations == 1


def test_knows_what_it_would_not_take_in_again() -> None:
    """A start and the ends of ideas and runs may come again: they add nothing up."""
    events = [*events_of_a_run(), RoundClosed(at_s=4.0, round=1, best=None, evaluations=2)]
    state = rebuild([])
    for event in events:
        assert not state.knows(event)
        state.apply(event)
    assert [event for event in events if not state.knows(event)] == events[:1]
