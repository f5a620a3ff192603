"""Module and Triton pairs in the columns of KernelBook (huggingface.co/datasets/GPUMODE/KernelBook)."""

from __future__ import annotations

from collections.abc import Iterator

from evaluators.records.problem import content_id
from search.harvest.corpus import Corpus, task
from search.harvest.rows import ORIGIN, STRINGS, Column, Row, columns


class Kernelbook:
    """Every correct Triton kernel with its reference.

    Unlike there, the Triton code is written by hand or model and no compiler's (`original_triton_code` is
    empty), and `get_init_inputs` returns a list of arguments, as KernelBench has it.
    """

    name = "kernelbook"
    about = "PyTorch modules and Triton kernels that were checked to do the same, in KernelBook's columns."
    columns = (
        *columns(
            "string",
            entry_point="name of the module's class; that of the Triton code has `New` behind it",
            original_triton_code="empty: no compiler's code is behind the kernel",
            python_code="the PyTorch module, with the sizes that were measured",
            triton_code="the kernel",
            repo_name="`ideatree`",
            module_name="the problem's name",
        ),
        *columns("bool", synthetic="true: the kernel was found by a search"),
        *columns("int64", uuid="from the contents of both"),
        Column(name="licenses", type=STRINGS, meaning="of the module and of the kernel"),
        *columns("int64", stars="0"),
        *columns("string", sha="the kernel's id", repo_link="empty"),
        *columns("float64", speedup="eager PyTorch's time over the kernel's"),
        *ORIGIN,
    )

    def rows(self, corpus: Corpus) -> Iterator[Row]:
        """One for each correct Triton kernel."""
        for each in corpus.solutions():
            if each.kernel.language != "triton":
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
