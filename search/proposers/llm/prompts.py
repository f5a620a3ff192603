"""Renders the prompts from the Markdown templates in `templates/`, or from a folder given by the user."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.records.cases import in_lines
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Case, Problem
from search.records.tree import Category, Idea, Outcome, Seed, Variant, fastest, speedups_of

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).with_name("templates")
LANGUAGES = {"cuda": ("triton", "cuda"), "cpu": ("cpp",)}
LOG_CHARACTERS = 6000
SHORT_LOG_CHARACTERS = 600
BEST_IN_SUMMARY, LAST_IN_SUMMARY = 5, 5

TOLERANCES = {
    "kernelbench": "Outputs must be within 1e-2 of the reference's, relative to each element and to the rms "
    "of the outputs. Lower precision inside the kernel is allowed as long as the outputs stay within that.",
    "kernelbench_v02": "Outputs must be within KernelBench v0.2's tolerance (1e-4 for float32, 1e-2 for half "
    "precision), relative to each element and to the rms of the outputs.",
    "strict": "Outputs must be about as accurate as PyTorch's own at this dtype: another order of summation "
    "and one more rounding are allowed, lower precision inside the kernel is not.",
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
    ("copy_gb_per_s", "{} GB/s when copying (bytes read and written), measured"),
    ("float32_tflop_per_s", "{} TFLOP/s in large float32 matmuls, measured"),
    ("tf32_tflop_per_s", "{} TFLOP/s in TF32, measured"),
    ("bfloat16_tflop_per_s", "{} TFLOP/s in bfloat16, measured"),
    ("float16_tflop_per_s", "{} TFLOP/s in float16, measured"),
    ("torch", "torch {}"),
    ("cuda", "CUDA {}"),
)


class Prompts:
    """Renders prompts. Templates in `folder` replace the built-in ones.

    `examples` and `hardware` say whether to include the languages' examples and the device's facts.
    `languages`:
    what kernels may be written in; empty for all that fit the device. Raises ValueError for a missing folder
    or an unknown language.
    """

    def __init__(
        self,
        *,
        folder: Path | None = None,
        examples: bool = True,
        hardware: bool = True,
        languages: Sequence[str] = (),
    ) -> None:
        self._folders = [*([folder] if folder else []), TEMPLATES]
        if folder and not folder.is_dir():
            raise ValueError(f"proposer.prompts is {folder}; that folder does not exist")
        known = sorted(path.stem for path in (TEMPLATES / "languages").glob("*.md"))
        for language in languages:
            if not any((each / "languages" / f"{language}.md").exists() for each in self._folders):
                raise ValueError(f"proposer.languages has {language!r}; known: {', '.join(known)}")
        self._examples, self._hardware = examples, hardware
        self._languages = tuple(languages)

    def system(self) -> str:
        """The system prompt."""
        return self._render("system.md")

    def ideas(
        self,
        problem: Problem,
        facts: Mapping[str, str],
        seed: Seed | None,
        history: Sequence[Outcome],
        entries: Sequence[Seed],
        count: int,
        repeated: Sequence[str] = (),
        *,
        summary: bool = False,
    ) -> str:
        """Asks for `count` ideas for the seed. `repeated` are texts that were proposed but are too close to
        earlier ideas; `summary` words the history by category instead of one line per idea."""
        return self._render(
            "ideas.md",
            **self._about(problem, facts, seed),
            count=count,
            seed_id=seed.id if seed else "",
            tried=self._tried(history, entries, seed, summary=summary),
            entries=[_kernel(entry) for entry in entries if seed is None or entry.id != seed.id],
            categories=[category.value for category in Category],
            repeated=list(repeated),
        )

    def code(
        self,
        problem: Problem,
        facts: Mapping[str, str],
        idea: Idea,
        seed: Seed | None,
        entry: Seed | None,
        failed: Sequence[Variant],
        number: int,
        of: int,
    ) -> str:
        """Asks for variant `number` of `of`. `failed` are the idea's variants that failed so far."""
        return self._render(
            "code.md",
            **self._about(problem, facts, seed),
            idea=idea,
            entry=None if entry is None else _kernel(entry),
            failures=[_failure(variant) for variant in failed],
            number=number,
            of=of,
        )

    def repair(self, problem: Problem, facts: Mapping[str, str], idea: Idea, failed: Variant) -> str:
        """Asks for a corrected version of a failed variant."""
        assert failed.evaluation is not None
        log = _shortened(failed.evaluation.log, LOG_CHARACTERS)
        kernel = {
            "source": failed.kernel.source.rstrip(),
            "status": failed.evaluation.status.value,
            "log": log,
        }
        return self._render("repair.md", **self._about(problem, facts, None), idea=idea, failed=kernel)

    def rules(self, problem: Problem) -> str:
        """The rules for a kernel in each language, without a question."""
        return self._render("rules.md", **self._about(problem, {}, None)).partition("# Answer")[0].strip()

    def _about(self, problem: Problem, facts: Mapping[str, str], seed: Seed | None) -> dict[str, Any]:
        """The values that all prompts share."""
        known = [words.format(facts[name]) for name, words in FACTS if facts.get(name)]
        return {
            "problem": {
                "name": problem.name,
                "source": problem.source.strip(),
                "sizes": ", ".join(f"{name} = {value}" for name, value in problem.overrides.items()),
                "dtype": problem.dtype,
                "device": "a GPU" if problem.device == "cuda" else "the CPU",
                "tolerance": tolerance_of(problem),
                "libraries": LIBRARIES[problem.libraries],
                "cases": [_case(each) for each in problem.cases],
                "roofline": _roofline(seed.evaluation) if seed and seed.evaluation else "",
            },
            "device": known if self._hardware else [],
            "seed": None if seed is None else _kernel(seed),
            "languages": self._languages or LANGUAGES[problem.device],
            "examples": self._examples,
        }

    def _tried(
        self, history: Sequence[Outcome], entries: Sequence[Seed], seed: Seed | None, *, summary: bool
    ) -> str:
        """The history in words; "" if there is none."""
        seeds = [*entries, *([seed] if seed else [])]
        variants = (variant for outcome in history for variant in outcome.variants)
        speedups = speedups_of([*seeds, *variants], history)
        if summary:
            return "\n".join(_summary(history, speedups))
        return "\n".join(f"- {_idea_line(outcome, speedups)}" for outcome in history)

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


def _kernel(seed: Seed) -> dict[str, str]:
    if not seed.drop_in:
        verdict = "It solves a different problem."
    elif seed.evaluation is None:
        verdict = "It has not been measured on this machine."
    else:
        verdict = _verdict(seed.evaluation)
    return {"id": seed.id, "source": seed.kernel.source.rstrip(), "verdict": verdict, "title": seed.why}


def _verdict(evaluation: Evaluation) -> str:
    """The figures of a correct kernel, or the status of a failed one."""
    timing = evaluation.timing
    if timing is None:
        return f"It failed ({evaluation.status.value})."
    words = [
        f"It takes {timing.kernel_ms:.4g} ms, {timing.speedup:.3g} times as fast as PyTorch eager "
        f"({timing.eager_ms:.4g} ms)"
    ]
    if timing.compile_ms is not None:
        words.append(f"; torch.compile takes {timing.compile_ms:.4g} ms")
    words.append(".")
    if evaluation.cases:
        words.insert(0, "Over all cases, as weighted geometric means: ")
        words += ["\n\n", *(f"- {line}\n" for line in in_lines(evaluation.cases)), "\n"]
    if evaluation.roofline is not None and (share := evaluation.roofline_share) is not None:
        words.append(
            f" That is {share:.0%} of the roofline; the problem is {evaluation.roofline.bound}-bound."
        )
    if (found := evaluation.correctness) is not None:
        if found.statistic is None:
            errors = f"{found.normwise_error:.2g}; that of eager is {found.eager_error:.2g}"
            words.append(f" Its error against float64 is {errors}.")
        if failing := [name for name, passed in found.distributions.items() if not passed]:
            words.append(f" It exceeds the tolerance on inputs of these kinds: {', '.join(failing)}.")
    return "".join(words)


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
    return (
        f"At least {found.bytes / 1e6:.4g} MB must be moved, and the reference performs "
        f"{found.operations / 1e9:.4g} GFLOP. At this device's measured rates that takes "
        f"{found.floor_ms:.4g} ms ({found.bound}-bound)."
    )


def _idea_line(outcome: Outcome, speedups: Mapping[str, float]) -> str:
    """One idea and its result."""
    return f"{outcome.idea.category.value}: {outcome.idea.text} → {_result(outcome, speedups)}"


def _result(outcome: Outcome, speedups: Mapping[str, float]) -> str:
    judged = [v.evaluation for v in outcome.variants if v.evaluation is not None]
    if not judged:
        return "not evaluated yet"
    if outcome.best is None or outcome.best.evaluation is None:
        counts = Counter(each.status.value for each in judged)
        return "failed: " + ", ".join(f"{n} {status}" for status, n in counts.most_common())
    timing = outcome.best.evaluation.timing
    assert timing is not None
    before = speedups.get(outcome.idea.parent)
    source = (
        "from the reference"
        if not outcome.idea.parent
        else f"from {before:.3g}x"
        if before
        else "from a seed"
    )
    correct = sum(each.timing is not None for each in judged)
    return (
        f"{timing.speedup:.3g}x eager at best, {timing.kernel_ms:.4g} ms, {source} "
        f"({correct} of {len(judged)} variants correct)"
    )


def _summary(history: Sequence[Outcome], speedups: Mapping[str, float]) -> list[str]:
    """What was tried and gained in each category, then the best and the latest ideas."""
    if not history:
        return []
    groups: defaultdict[Category, list[Outcome]] = defaultdict(list)
    for outcome in history:
        groups[outcome.idea.category].append(outcome)
    lines = []
    for category, outcomes in groups.items():
        gains = [_gain(each, speedups) for each in outcomes if each.best is not None]
        best = f"; the best made its seed {max(gains):.3g} times as fast" if gains else ""
        helped = sum(gain > 1.02 for gain in gains)
        correct = f"{len(gains)} with a correct kernel"
        lines.append(f"- {category.value}: {len(outcomes)} ideas, {correct}, {helped} helped{best}")
    order = {v.id: n for n, v in enumerate(fastest((o.best for o in history if o.best), len(history)))}
    ranked = sorted((o for o in history if o.best and o.best.id in order), key=lambda o: order[o.best.id])  # type: ignore[union-attr]
    lines += ["", "Best ideas:"] + [f"- {_idea_line(each, speedups)}" for each in ranked[:BEST_IN_SUMMARY]]
    lines += ["", "Latest ideas:"] + [
        f"- {_idea_line(each, speedups)}" for each in history[-LAST_IN_SUMMARY:]
    ]
    return lines


def _gain(outcome: Outcome, speedups: Mapping[str, float]) -> float:
    assert outcome.best is not None
    assert outcome.best.evaluation is not None
    before = speedups.get(outcome.idea.parent) or 1.0
    return outcome.best.evaluation.speedup / before if math.isfinite(before) else 0.0


def _failure(variant: Variant) -> str:
    assert variant.evaluation is not None
    log = " ".join(_shortened(variant.evaluation.log, SHORT_LOG_CHARACTERS).split())
    return f"{variant.evaluation.status.value}: {log}"


def _shortened(text: str, characters: int) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= characters:
        return text
    return f"{text[: characters // 3]}\n[…]\n{text[-2 * characters // 3 :]}"
