"""The questions that a language model is asked in a run, each with the evidence of the rounds before."""

from __future__ import annotations

from collections.abc import Sequence

from evaluators.records.problem import Problem
from search.proposers.llm.answers import ideas_schema, ranking_schema
from search.proposers.llm.measured_history import MeasuredHistory
from search.proposers.llm.probe_findings import probe_findings
from search.proposers.llm.prompts import Prompts
from search.protocols import RunContext
from search.records.model_calls import Purpose, Question
from search.records.probe_request import ProbeRequest
from search.records.tree import Expansion, Idea, Outcome, Reflection, Seed, Variant, shown_history


class Questions:
    """Those of a run. `library`, `diagnoses`, `reflection` and `wave`: see `LLMProposer`; `wave` is 0 for all
    variants at once."""

    def __init__(
        self,
        run: RunContext,
        prompts: Prompts,
        *,
        library: bool,
        diagnoses: bool,
        reflection: bool,
        wave: int,
    ) -> None:
        self._run, self._prompts, self._wave = run, prompts, wave
        self._shows_library, self._shows_diagnoses = library, diagnoses
        self._shows_reflections = reflection

    def ideas(
        self,
        problem: Problem,
        expansion: Expansion,
        history: Sequence[Outcome],
        count: int,
        turned_down: Sequence[str] = (),
    ) -> Question:
        """The question for `count` ideas."""
        run = self._run
        entries = run.entries if self._shows_library else ()
        seed = expansion.seed
        evidence = self._known(expansion, history)
        earlier = sum(each.round == expansion.round for each in run.state.probes.values())
        probes = max(run.probes - earlier, 0)
        prompt = self._prompts.ideas(
            problem,
            run.facts,
            seed,
            evidence,
            entries,
            count,
            expansion.variants,
            turned_down,
            summary=run.history == "summary",
            probes=probes,
            probed=probe_findings(run.state, run.entries, evidence, expansion.round),
        )
        return Question(
            purpose=Purpose.IDEAS,
            system=self._prompts.system(),
            prompt=prompt,
            about=f"round {expansion.round}",
            schema=ideas_schema(
                seed.id if seed else "",
                [entry.id for entry in entries],
                languages=self._prompts.languages(problem, run.facts),
                probes=probes > 0,
            ),
        )

    def screening(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], ideas: Sequence[Idea]
    ) -> Question:
        """The question which of the ideas are the most promising. It is optional."""
        run = self._run
        prompt = self._prompts.screening(
            problem,
            run.facts,
            expansion.seed,
            self._known(expansion, history),
            ideas,
            expansion.ideas,
            summary=run.history == "summary",
        )
        return Question(
            purpose=Purpose.SCREENING,
            system=self._prompts.system(),
            prompt=prompt,
            about=f"round {expansion.round}",
            schema=ranking_schema(len(ideas)),
            optional=True,
        )

    def code(
        self, problem: Problem, idea: Idea, parent: Seed | None, numbers: Sequence[int], of: int
    ) -> Question:
        """The question for the variants with these numbers, out of `of` of an idea."""
        run = self._run
        entry = next((each for each in run.entries if each.id == idea.builds_on), None)
        there = run.state.tree.variants_of(idea.id) if idea.id in run.state.tree.ideas else ()
        earlier = [v for v in there if not v.repairs][: self.wave_start(numbers[0])]
        evidence = self._evidence(idea)
        prompt = self._prompts.code(problem, run.facts, idea, parent, entry, evidence, earlier, numbers, of)
        return Question(
            purpose=Purpose.CODE, system=self._prompts.system(), prompt=prompt, about=f"idea {idea.id}"
        )

    def repair(self, problem: Problem, idea: Idea, failed: Variant) -> Question:
        """The question about a failed variant."""
        evidence = self._evidence(idea)
        prompt = self._prompts.repair(problem, self._run.facts, idea, failed, evidence)
        return Question(
            purpose=Purpose.REPAIR, system=self._prompts.system(), prompt=prompt, about=f"variant {failed.id}"
        )

    def probe(self, problem: Problem, request: ProbeRequest, base: Seed | None) -> Question:
        """The question for a probe's kernel."""
        run = self._run
        earlier = run.state.tree.before(request.round)
        evidence = MeasuredHistory(earlier.history(), run.entries, earlier.ranking)
        prompt = self._prompts.probe(problem, run.facts, request, base, evidence)
        return Question(
            purpose=Purpose.PROBE, system=self._prompts.system(), prompt=prompt, about=f"probe {request.id}"
        )

    def reflection(self, problem: Problem, round: int) -> Question:
        """The question what the measurements of a closed round mean. It is optional."""
        run = self._run
        then = run.state.tree.before(round + 1)
        evidence = MeasuredHistory(
            then.history(), run.entries, then.ranking, reflections=self._reflections(round)
        )
        return Question(
            purpose=Purpose.REFLECTION,
            system=self._prompts.system(),
            prompt=self._prompts.reflection(problem, run.facts, round, evidence),
            about=f"round {round}",
            optional=True,
        )

    def wave_start(self, number: int) -> int:
        """The number of variants in the waves before that of the variant with this number."""
        return (number - 1) // self._wave * self._wave if self._wave else 0

    def _reflections(self, before: int) -> list[Reflection]:
        """The reflections to show in a question about this round."""
        run = self._run
        if not self._shows_reflections or run.history == "none":
            return []
        return [each for number, each in sorted(run.state.reflections.items()) if number < before]

    def _known(self, expansion: Expansion, history: Sequence[Outcome]) -> MeasuredHistory:
        """The evidence for new ideas."""
        run = self._run
        ranking = run.state.tree.before(expansion.round).ranking
        diagnoses = run.state.diagnoses if self._shows_diagnoses else {}
        return MeasuredHistory(history, run.entries, ranking, diagnoses, self._reflections(expansion.round))

    def _evidence(self, idea: Idea) -> MeasuredHistory:
        """The evidence of the rounds before the idea's, so that a prompt does not depend on which kernel of a
        round is measured first."""
        run = self._run
        earlier = run.state.tree.before(idea.round)
        return MeasuredHistory(shown_history(earlier.history(), run.history), run.entries, earlier.ranking)
