"""Kernels in the place of PyTorch's operators, in a running program.

Where to look; each file says more at its top. Nothing here needs more than torch, `kernel_library.overrides.shapes` and
`kernel_library.overrides.choice`: the folder is copied into the packages that `python -m kernel_library.export` writes.

    override            the switch: what is on, and what torch calls for it
    dispatcher          one call: which kernel, the fallback, the guard, in-place and out= forms
    compiled            the same under torch.compile
    gradients           operators that torch makes of others, and kernels with a backward of their own
    operators           names, schemas and forms of an operator
    kernels             a kernel for an operator, from a function, a file or a folder
    library_kernels     the library's kernels for an operator
    interfaces          how a call of an operator maps to that of a library kernel: a table
    counts              what was called how often, and why not
    packaged            the kernels of an exported package
"""
