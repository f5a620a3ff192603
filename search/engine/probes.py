"""Probes: kernels that a language model asks for next to its ideas, which are only timed. They run at the
same time as the round's variants and never enter the tree."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from search.engine.session import Session
from search.protocols import ProbeProposer, ProbeTimer, ProposerFailed
from search.records.budget import BudgetSpent
from search.records.events import ProbeMeasured, ProbeRequested, ProbeWritten
from search.records.probe_request import ProbeRequest

logger = logging.getLogger(__name__)


class Probes:
    """Has at most `most` probes a round written and timed. Raises ValueError for a negative `most`."""

    def __init__(self, session: Session, proposer: object, most: int) -> None:
        if most < 0:
            raise ValueError(f"probes is {most}; it must be 0 or more")
        self._session, self._proposer, self._timer = session, proposer, session.evaluator
        can = isinstance(proposer, ProbeProposer) and isinstance(self._timer, ProbeTimer)
        if most and not can:
            logger.warning("probes=%d has no effect: this search's proposer or evaluator has none", most)
        self.most = most if can else 0
        """The probes that may be asked for in a round."""

    def requested(self, round: int) -> list[ProbeRequested]:
        """The events of what the proposer has asked for since the last call, as far as the round has room."""
        if not self.most or not isinstance(self._proposer, ProbeProposer):
            return []
        known = self._session.state.probes
        new = {each.id: each for each in self._proposer.take_probes() if each.id not in known}
        room = self.most - sum(each.round == round for each in known.values())
        now_s = self._session.now_s
        return [ProbeRequested(at_s=now_s, request=each) for each in list(new.values())[: max(room, 0)]]

    def resume(self) -> None:
        """Starts the probes of the open round that an earlier process of this run did not finish."""
        state = self._session.state
        open_ = (each for each in state.probes.values() if each.round > state.tree.rounds_closed)
        self.start([each for each in open_ if each.id not in state.probed])

    def start(self, requests: Sequence[ProbeRequest]) -> None:
        """Has the probes written and timed, all at the same time."""
        for each in requests if self.most else ():
            self._session.work.spawn(self._probe(each), f"probe {each.id}")

    async def _probe(self, request: ProbeRequest) -> None:
        """Without a result if a limit or a stop forbids it. A kernel that was written before is not asked for
        again."""
        session = self._session
        if (kernel := session.state.probe_kernels.get(request.id)) is None:
            assert isinstance(self._proposer, ProbeProposer)
            try:
                base = session.seed(request.base)
                kernel = await self._proposer.write_probe(session.problem, request, base)
            except BudgetSpent as spent:
                logger.info("probe %s is not written: %s", request.id, spent)
                return
            except ProposerFailed as error:
                session.work.request_stop(f"error: {error}")
                return
            if kernel is not None:
                session.record(ProbeWritten(at_s=session.now_s, request_id=request.id, kernel=kernel))
        probe = None if kernel is None else await session.requests.probe(kernel)
        if kernel is None or probe is not None:
            session.record(
                ProbeMeasured(at_s=session.now_s, request_id=request.id, kernel=kernel, probe=probe)
            )
