"""The templates of calls, under the name by which the files that are copied into `optimized/` import them."""

from search.optimize.models.templates import (
    Signature,
    Template,
    differences,
    finder,
    hooks_in,
    localized,
    maker,
    tensor_names,
)

__all__ = ["Signature", "Template", "differences", "finder", "hooks_in", "localized", "maker", "tensor_names"]
