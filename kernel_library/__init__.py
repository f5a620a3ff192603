"""Keeps strong kernels beyond a run. Knows the evaluator's records and its references only.

    from kernel_library import best, override
    softmax = best("softmax", like=x)
    with override():  # the library's kernels, in place of PyTorch's operators
        model(x)

Where to look; imports point down:

    commands      list/, show/, add/, verify/, export/: each has a __main__
    export/       one format per file: package, directory, hub
    app/          what the commands share: entries (which entries a command is about)
    catalogue/    entry (records), cards, library, store, retrieval (which entries help with a problem),
                  traits and meaning (what a reference computes), shape_table; best and override, for users
    overrides/    kernels in place of PyTorch's operators; exported packages get a copy: override (the
                  switch), dispatcher, compiled, gradients, operators, kernels, library_kernels, interfaces,
                  counts, packaged; shapes and choice (which kernel a call gets)
    seeds/        the shipped kernels: seeds/<op>/<name>/{kernel.py,card.yaml,shapes.csv}
"""

from kernel_library.catalogue.best import best
from kernel_library.catalogue.override import override

__all__ = ["best", "override"]
