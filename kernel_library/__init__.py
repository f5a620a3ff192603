"""The library of strong kernels, which outlives single runs. Depends only on the evaluators' records and
references.

    from kernel_library import best, override
    softmax = best("softmax", like=x)
    with override():  # the library's kernels replace PyTorch's operators
        model(x)

Imports point down this map:

    commands      list/, show/, add/, verify/, export/: each has a __main__
    export/       one format per file: package, directory, hub
    app/          shared by the commands: entries (selects the entries that a command uses)
    catalogue/    entry (records), cards, library, store, retrieval (finds entries that help with a problem),
                  traits and meaning (what a reference computes), shape_table; best and override, for users,
                  and what best needs: originals, measuring, fastest (the functions that it returns)
    overrides/    kernels that replace PyTorch's operators; exported packages get a copy: override (the
                  switch), dispatcher, compiled, gradients, operators, kernels, library_kernels, interfaces,
                  wrapped_numbers, counts, packaged; shapes and choice (which kernel a call gets)
    seeds/        the shipped kernels: seeds/<op>/<name>/{kernel.py,card.yaml,shapes.csv}
"""

from kernel_library.catalogue.best import best
from kernel_library.catalogue.override import override

__all__ = ["best", "override"]
