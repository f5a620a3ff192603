"""Renders the prompts from the Markdown templates in `templates/`, or from a folder given by the user."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.base.languages import LANGUAGES, languages_for
from evaluators.records.configurations import configuration_lines
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Case, Problem
from evaluators.records.resources import resource_lines
from evaluators.reference.loading import KEEPS_TYPES, assigned_names
from search.proposers.llm.measured_history import MeasuredHistory, share_room
from search.records.probe_request import ProbeRequest
from search.records.tree import MOST_CHARACTERS, Category, Idea, Seed, Variant

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).with_name("templates")
VERSIONS = {
    "cuda": ("nvcc", " (toolkit {})"),
    "cpp": ("compiler", " ({})"),
    "gluon": ("triton", " (in Triton {})"),
}
"""The fact with the version of a language's compiler, and how it is stated; otherwise the fact has the
language's name."""
ALWAYS_THERE = ("triton", "cuda", "cpp")
"""Languages that are offered although the facts of old recordings do not name them."""
LOG_CHARACTERS = 6000
ENTRY_CHARACTERS = 40_000
"""The most characters of the library kernels' sources in a prompt; the least related are left out first."""

TOLERANCES = {
    "kernelbench": "Outputs must be within 1e-2 of the reference's, relative to each element and to the rms "
    "of the outputs. Lower precision inside the kernel is allowed as long as the outputs stay within that.",
    "kernelbench_v02": "Outputs must be within KernelBench v0.2's tolerance (1e-4 for float32, 1e-2 for half "
    "precision), relative to each element and to the rms of the outputs.",
    "strict": "Outputs must be about as accurate as PyTorch's own at this dtype, measured against "
    "float64: another order of summation and one more rounding are allowed, lower precision inside the "
    "kernel is not.",
}
PRECISION = (
    "The factors of products may be rounded to {}, with sums in float32; nothing else may use lower "
    "precision."
)
INPUTS = (
    "This must hold for all inputs, not only for the benchmark's values: also for shifted, tiny, huge, "
    "uneven, sparse, constant and masked (-inf) ones, with one huge element in a row, with infinities and "
    "NaN, in the layout that the reference is given, and with other weights. A call must not change its "
    "inputs."
)
LIBRARIES = {
    "any": "A kernel may call libraries (cuBLAS, cuDNN, torch's own operators).",
    "no_library": "A kernel must do the computing itself: one that calls cuBLAS, cuDNN, oneDNN, MKL or "
    "torch's own operators for it is rejected. Allocating, reshaping views and copying with torch are "
    "allowed.",
}
FACTS = (
    ("device", "{}"),
    ("architecture", "compute capability {}"),
    ("multi_processor_count", "{} streaming multiprocessors"),
    ("shared_memory_per_block_optin", "at most {} bytes of shared memory per block"),
    ("shared_memory_per_multiprocessor", "{} bytes of shared memory per multiprocessor"),
    ("regs_per_multiprocessor", "{} registers per multiprocessor"),
    ("max_threads_per_multi_processor", "{} threads per multiprocessor"),
    ("L2_cache_size", "{} bytes of L2 cache"),
    ("total_memory", "{} bytes of memory"),
    ("copy_gb_per_s", "{} GB/s when copying (bytes read and written)"),
    ("float32_tflop_per_s", "{} TFLOP/s in large float32 matmuls"),
    ("tf32_tflop_per_s", "{} TFLOP/s in TF32"),
    ("bfloat16_tflop_per_s", "{} TFLOP/s in bfloat16"),
    ("float16_tflop_per_s", "{} TFLOP/s in float16"),
    ("empty_kernel_us", "{} us for the smallest kernel, launched among others"),
    ("instructions", "vector instructions: {}"),
    ("caches", "caches: {}"),
    ("threads", "{} threads for a kernel"),
    ("torch", "torch {}"),
    ("cuda", "CUDA {}"),
)


class Prompts:
    """Renders prompts. Templates in `folder` replace the built-in ones.

    `examples`, `hardware` and `mistakes` say whether to include the languages' examples, the device's facts
    and why kernels failed so far; `edits`, whether a model may answer with edits of the seed; `diversity`,
    the share of ideas, rounded up, that must have another structure than the seed. `languages`: what kernels
    may be written in; empty for those of `languages_offered`. Each idea chooses one. Raises ValueError for a
    missing folder, an unknown language or a share outside 0 to 1.
    """

    def __init__(
        self,
        *,
        folder: Path | None = None,
        examples: bool = True,
        hardware: bool = True,
        mistakes: bool = True,
        edits: bool = True,
        diversity: float = 0.25,
        languages: Sequence[str] = (),
    ) -> None:
        self._folders = [*([folder] if folder else []), TEMPLATES]
        if folder and not folder.is_dir():
            raise ValueError(f"proposer.prompts is {folder}; that folder does not exist")
        known = sorted(path.stem for path in (TEMPLATES / "languages").glob("*.md"))
        for language in languages:
            if not any((each / "languages" / f"{language}.md").exists() for each in self._folders):
                raise ValueError(f"proposer.languages has {language!r}; known: {', '.join(known)}")
        if not 0 <= diversity <= 1:
            raise ValueError(f"proposer.diversity is {diversity}; it must be from 0 to 1")
        self._examples, self._hardware, self._mistakes = examples, hardware, mistakes
        self._edits, self._diversity = edits, diversity
        self._languages = tuple(languages)

    def system(self) -> str:
        """The system prompt."""
        return self._render("system.md")

    def ideas(
        self,
        problem: Problem,
        facts: Mapping[str, str],
        seed: Seed | None,
        evidence: MeasuredHistory,
        entries: Sequence[Seed],
        count: int,
        variants: int = 1,
        repeated: Sequence[str] = (),
        *,
        summary: bool = False,
        probes: int = 0,
        probed: str = "",
    ) -> str:
        """Asks for `count` ideas for the seed, each with `variants` kernels. `repeated` are texts that were
        proposed but are too close to earlier ideas; `summary` gives the history less room. At most `probes`
        probes may be asked for; `probed` are the findings of earlier ones."""
        others = [entry for entry in entries if seed is None or entry.id != seed.id]
        sources = share_room({each.id: each.kernel.source.rstrip() for each in others}, ENTRY_CHARACTERS)
        tried = evidence.tried(seed, summary=summary)
        return self._render(
            "ideas.md",
            **self._about(problem, facts, seed, evidence),
            count=count,
            variants=variants,
            seed_id=seed.id if seed else "",
            tried=tried,
            noise=evidence.noise() if tried else "",
            other=math.ceil(self._diversity * count) if seed and tried and self._diversity else 0,
            entries=[_seed(each, evidence, sources[each.id]) for each in others],
            categories=[category.value for category in Category],
            most_characters=MOST_CHARACTERS,
            repeated=list(repeated),
            probes=probes,
            probed=probed,
            reflections=evidence.reflections(),
        )

    def code(
        self,
        problem: Problem,
        facts: Mapping[str, str],
        idea: Idea,
        seed: Seed | None,
        entry: Seed | None,
        evidence: MeasuredHistory,
        earlier: Sequence[Variant],
        numbers: Sequence[int],
        of: int,
    ) -> str:
        """Asks for the variants with these numbers out of `of`. `earlier` are the idea's first
        variants, which were measured already."""
        plans = dict(enumerate(idea.variant_plans[:of], 1))
        measured = [(n, plans.pop(n, ""), evidence.result(each)) for n, each in enumerate(earlier, 1)]
        own = [(number, plans.pop(number, "")) for number in numbers]
        return self._render(
            "code.md",
            **self._about(problem, facts, seed, evidence, idea.language),
            idea=idea,
            entry=None if entry is None else _seed(entry, evidence),
            earlier=measured,
            own=own,
            of=of,
            others=list(plans.values()),
            edits=self._edits and seed is not None and len(own) == 1,
        )

    def repair(
        self,
        problem: Problem,
        facts: Mapping[str, str],
        idea: Idea,
        failed: Variant,
        evidence: MeasuredHistory,
    ) -> str:
        """Asks for a corrected version of a failed variant."""
        assert failed.evaluation is not None
        kernel: dict[str, Any] = {
            "source": failed.kernel.source.rstrip(),
            "status": failed.evaluation.status.value,
            "log": _shortened(failed.evaluation.log, LOG_CHARACTERS),
            "configurations": configuration_lines(failed.evaluation.configurations),
            "resources": resource_lines(failed.evaluation.resources),
        }
        about = self._about(problem, facts, None, evidence, failed.kernel.language)
        return self._render("repair.md", **about, idea=idea, own=[(1, "")], failed=kernel, edits=self._edits)

    def probe(
        self,
        problem: Problem,
        facts: Mapping[str, str],
        request: ProbeRequest,
        base: Seed | None,
        evidence: MeasuredHistory,
    ) -> str:
        """Asks for the kernel of a probe that changes the kernel `base`."""
        about = self._about(problem, facts, base, evidence, base.kernel.language if base else "")
        edits = self._edits and base is not None
        return self._render("probe.md", **about, request=request, own=[(1, "")], edits=edits)

    def reflection(
        self, problem: Problem, facts: Mapping[str, str], round: int, evidence: MeasuredHistory
    ) -> str:
        """Asks what the measurements of a closed round mean."""
        return self._render(
            "reflection.md",
            **self._about(problem, facts, None, evidence),
            round=round,
            hypotheses=evidence.hypotheses(round),
            reflections=evidence.reflections(),
        )

    def screening(
        self,
        problem: Problem,
        facts: Mapping[str, str],
        seed: Seed | None,
        evidence: MeasuredHistory,
        ideas: Sequence[Idea],
        wanted: int,
        *,
        summary: bool = False,
    ) -> str:
        """Asks which `wanted` of the ideas for the seed are the most promising, and which cannot work."""
        return self._render(
            "screening.md",
            **self._about(problem, facts, seed, evidence),
            tried=evidence.tried(seed, summary=summary),
            reflections=evidence.reflections(),
            ideas=ideas,
            wanted=wanted,
        )

    def rules(self, problem: Problem, facts: Mapping[str, str]) -> str:
        """The rules for a kernel in each language, without a question."""
        return self._render("rules.md", **self._about(problem, facts, None, MeasuredHistory())).strip()

    def languages(self, problem: Problem, facts: Mapping[str, str]) -> list[str]:
        """The names of the languages that kernels for the problem may be written in."""
        return list(self._languages) or languages_offered(problem, facts)

    def _about(
        self,
        problem: Problem,
        facts: Mapping[str, str],
        seed: Seed | None,
        evidence: MeasuredHistory,
        language: str = "",
    ) -> dict[str, Any]:
        """The values that all prompts share. `language`: the one that is chosen already, if any."""
        known = [words.format(facts[name]) for name, words in FACTS if facts.get(name)]
        measured = evidence.measured(seed) if seed else None
        allowed = self.languages(problem, facts)
        languages = [language] if language in allowed else allowed
        return {
            "problem": {
                "name": problem.name,
                "source": problem.source.strip(),
                "sizes": ", ".join(f"{name} = {value}" for name, value in problem.overrides.items()),
                "dtype": problem.dtype,
                "device": "a GPU" if problem.device == "cuda" else "the CPU",
                "keeps_types": KEEPS_TYPES in assigned_names(problem.source),
                "float8": "float8" in problem.source,
                "tolerance": tolerance_of(problem),
                "libraries": LIBRARIES[problem.libraries],
                "backward": problem.backward,
                "cases": [_case(each) for each in problem.cases],
                "roofline": _roofline(measured) if measured else "",
            },
            "on_gpu": problem.device == "cuda",
            "device": known if self._hardware else [],
            "seed": None if seed is None else _seed(seed, evidence),
            "mistakes": evidence.mistakes() if self._mistakes else [],
            "languages": languages,
            "chosen": LANGUAGES[language].title if [language] == languages != allowed else "",
            "titles": {each: _title(each, facts) for each in languages},
            "good_at": {name: each.good_at for name, each in LANGUAGES.items()},
            "examples": self._examples,
        }

    def _render(self, name: str, **values: Any) -> str:
        text = self._environment.get_template(name).render(**values).strip() + "\n"
        parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
        # Parts that a template omits leave blank lines; only code keeps its blank lines.
        parts[::2] = [re.sub(r"\n{3,}", "\n\n", part) for part in parts[::2]]
        return "".join(parts)

    @cached_property
    def _environment(self) -> jinja2.Environment:
        import jinja2

        return jinja2.Environment(
            loader=jinja2.FileSystemLoader([str(folder) for folder in self._folders]),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,  # Markdown for a model, not a page
        )


def languages_offered(problem: Problem, facts: Mapping[str, str]) -> list[str]:
    """The names of the languages that a model may choose from: those that the machine with these facts has,
    that compile for its GPU, and that the problem's policy on libraries leaves whole."""
    capability = tuple(map(int, facts.get("architecture", "99").split(".")))
    return [
        each.name
        for each in reversed(languages_for(problem.device))
        if each.default
        and (each.name in ALWAYS_THERE or facts.get(each.name))
        and capability >= each.capability
        and (each.own_libraries or problem.libraries == "any")
    ]


def _title(language: str, facts: Mapping[str, str]) -> str:
    """The language's title and its version, if it is known."""
    fact, words = VERSIONS.get(language, (language, " {}"))
    known = LANGUAGES.get(language)
    return (known.title if known else language) + (words.format(facts[fact]) if facts.get(fact) else "")


def _seed(seed: Seed, evidence: MeasuredHistory, source: str | None = None) -> dict[str, Any]:
    return {
        "id": seed.id,
        "source": seed.kernel.source.rstrip() if source is None else source,
        "verdict": evidence.verdict(seed),
        "title": seed.why,
        "lineage": evidence.lineage(seed),
        "diagnosis": evidence.diagnosis(seed),
    }


def _case(case: Case) -> str:
    return f"{case.name}, weight {case.weight:g}" if case.weight else f"{case.name}: checked, not timed"


def tolerance_of(problem: Problem) -> str:
    """The tolerance of a problem, in words."""
    allowed = [PRECISION.format(problem.precision)] if problem.precision else []
    return " ".join([TOLERANCES[problem.tolerance], *allowed, INPUTS])


def _roofline(evaluation: Evaluation) -> str:
    found = evaluation.roofline
    if found is None:
        return ""
    needed = f"At least {found.bytes / 1e6:.4g} MB must be moved"
    if found.operations:
        needed += f", and the reference performs {found.operations / 1e9:.4g} GFLOP"
    return (
        f"{needed}. At the device's rate of copying, or of arithmetic in the allowed precision if that takes "
        f"longer, this is {found.floor_ms:.4g} ms, the roofline: {found.bound}-bound."
    )


def _shortened(text: str, characters: int) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= characters:
        return text
    return f"{text[: characters // 3]}\n[…]\n{text[-2 * characters // 3 :]}"
