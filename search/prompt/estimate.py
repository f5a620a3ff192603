"""What a search will ask of language models, in calls, tokens and dollars, before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from search.proposers.llm.measured_history import (
    MISTAKES_CHARACTERS,
    REFLECTIONS_CHARACTERS,
    TRIED_CHARACTERS,
)
from search.records.model_calls import CHARACTERS_PER_TOKEN, LLM, Usage

IDEA_TOKENS, KERNEL_TOKENS, REFLECTION_TOKENS = 250, 3500, 400
"""Tokens of an answer for each idea, kernel and reflection: those of a strong model's CUDA kernels (14,000
characters) without its thinking."""
TRIED_PER_VARIANT = 250
"""Characters of the history for each variant; its room is limited."""


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """The size of a search, and the characters of its first prompts.

    Attributes:
        rounds: The rounds.
        ideas: Ideas per round.
        variants: Variants per idea.
        seeds: The most kernels that a round starts from; each gets a question for ideas.
        repairs: The most repairs per variant.
        probes: The most probes per round, each with a question for code.
        together: Whether one question asks for all variants of an idea.
        screening: How many times as many ideas are asked for as are written; 1: no screening.
        reflects: Whether the model is asked what each round means, except the last.
        ideas_characters: Characters of the first prompt for ideas.
        code_characters: Characters of the first prompt for code.
    """

    rounds: int
    ideas: int
    variants: int
    seeds: int
    repairs: int
    probes: int
    together: bool
    screening: int
    reflects: bool
    ideas_characters: int
    code_characters: int

    @property
    def idea_calls(self) -> int:
        """Questions for ideas: one in the first round, then one for each seed."""
        return 1 + (self.rounds - 1) * min(self.seeds, self.ideas)

    @property
    def code_calls(self) -> int:
        """Questions for code."""
        return self.rounds * self.ideas * (1 if self.together else self.variants)

    @property
    def screening_calls(self) -> int:
        """Questions about which ideas are the most promising."""
        return self.idea_calls if self.screening > 1 else 0

    @property
    def reflection_calls(self) -> int:
        """Questions about the meaning of a round's measurements."""
        return self.rounds - 1 if self.reflects else 0

    @property
    def most_repairs(self) -> int:
        """Questions for repairs if every kernel failed."""
        return self.rounds * self.ideas * self.variants * self.repairs

    def usage(self) -> Usage:
        """The expected tokens without repairs."""
        seed = KERNEL_TOKENS * CHARACTERS_PER_TOKEN
        asked = self.ideas_characters
        per_round = min(self.seeds, self.ideas)
        one_round = min(TRIED_CHARACTERS, self.ideas * self.variants * TRIED_PER_VARIANT)
        for earlier in range(1, self.rounds):
            tried = min(TRIED_CHARACTERS, earlier * one_round)
            asked += per_round * (self.ideas_characters + seed + tried + MISTAKES_CHARACTERS // 2)
        sketches = self.rounds * self.ideas * self.screening * IDEA_TOKENS
        if self.screening > 1:
            asked += asked + sketches * CHARACTERS_PER_TOKEN
        for earlier in range(1, self.reflection_calls + 1):
            told = min(REFLECTIONS_CHARACTERS, earlier * REFLECTION_TOKENS * CHARACTERS_PER_TOKEN)
            asked += self.ideas_characters + one_round + (per_round + 1) * told
        asked += self.code_calls * self.code_characters
        asked += round(self.code_calls * (1 - 1 / self.rounds)) * (seed + MISTAKES_CHARACTERS // 2)
        kernels = self.rounds * self.ideas * self.variants
        return Usage(
            input_tokens=asked // CHARACTERS_PER_TOKEN,
            output_tokens=sketches + kernels * KERNEL_TOKENS + self.reflection_calls * REFLECTION_TOKENS,
        )


def estimate_lines(plan: SearchPlan, models: Mapping[str, LLM]) -> list[str]:
    """The estimate in words; with several models, the dollars of each if it did all of the work."""
    usage = plan.usage()
    repair = Usage(
        input_tokens=plan.code_characters // CHARACTERS_PER_TOKEN + KERNEL_TOKENS,
        output_tokens=KERNEL_TOKENS,
    )
    each = "repair or probe" if plan.probes else "repair"
    counts = {
        "ideas": plan.idea_calls,
        "screening": plan.screening_calls,
        "code": plan.code_calls,
        "reflections": plan.reflection_calls,
    }
    calls = ", ".join(f"{count} for {what}" for what, count in counts.items() if count)
    probes = f", at most {plan.rounds * plan.probes} for probes" if plan.probes else ""
    lines = [
        f"calls    {calls}, at most {plan.most_repairs} for repairs{probes}",
        f"tokens   about {usage.input_tokens:,} in and {usage.output_tokens:,} out, without the model's "
        f"thinking; each {each} adds about {repair.input_tokens:,} in and {repair.output_tokens:,} out",
    ]
    for model in models.values():
        if model.price.known:
            cost, more = model.price.dollars(usage), model.price.dollars(repair)
            lines.append(f"dollars  about {cost:.2f} with {model.name}; each {each} adds about {more:.3f}")
        else:
            lines.append(f"dollars  unknown with {model.name}, which has no price (llm.….price)")
    return lines
