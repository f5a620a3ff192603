"""Format kernelbook: PyTorch and Triton pairs in the columns of KernelBook
(huggingface.co/datasets/GPUMODE/KernelBook)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from evaluators.records.problem import content_id
from search.harvest.corpus import Corpus, task
from search.harvest.rows import ORIGIN, STRINGS, Column, Row, columns


class Kernelbook:
    """Every correct Triton kernel with its reference.

    Unlike in KernelBook, the Triton code was written by a person or a model, not by a compiler
    (`original_triton_code` is empty), and `get_init_inputs` returns a list of arguments, as in KernelBench.
    """

    name = "kernelbook"
    about = "PyTorch modules and Triton kernels checked to compute the same, in the columns of KernelBook."
    columns = (
        *columns(
            "string",
            entry_point="name of the module's class; the Triton code's class has the suffix `New`",
            original_triton_code="empty, because no compiler wrote the kernel",
            python_code="the PyTorch module, with the measured sizes",
            triton_code="the kernel",
            repo_name="`ideatree`",
            module_name="name of the problem",
        ),
        *columns("bool", synthetic="true, because a search found the kernel"),
        *columns("int64", uuid="hash of both sources"),
        Column(name="licenses", type=STRINGS, meaning="licenses of the module and the kernel"),
        *columns("int64", stars="0"),
        *columns("string", sha="id of the kernel", repo_link="empty"),
        *columns("float64", speedup="speedup over eager PyTorch"),
        *ORIGIN,
    )

    def rows(self, corpus: Corpus, left_out: Counter[str]) -> Iterator[Row]:
        """A row per correct Triton kernel."""
        for each in corpus.solutions():
            if each.kernel.language != "triton":
                left_out["kernels in other languages than Triton"] += 1
                continue
            reference = task(each.problem)["reference"]
            licenses = {each.origin["reference_license"], each.origin["kernel_license"]}
            values = {
                "entry_point": "Model",
                "original_triton_code": "",
                "python_code": reference,
                "triton_code": each.kernel.source,
                "repo_name": "ideatree",
                "module_name": each.problem.name,
                "synthetic": True,
                "uuid": int(content_id(reference, each.kernel.source), 16),
                "licenses": sorted(licenses),
                "stars": 0,
                "sha": each.kernel.id,
                "repo_link": "",
                "speedup": each.evaluation.speedup,
                **each.origin,
            }
            yield Row(
                values=values, compared=(reference, each.kernel.source), worth=each.evaluation.speedup_low
            )
