"""Replaces PyTorch's operators with kernels in a running program.

This folder needs only torch: `ideatree export` copies it into the packages that it writes.

    override            enables and disables overrides, and registers them with torch
    dispatcher          one call: chooses the kernel, checks it, falls back; in-place and out= forms
    compiled            the same under torch.compile
    gradients           composite operators, and kernels with their own backward
    operators           names, schemas and forms of an operator
    kernels             a kernel for an operator, from a function, a file or a folder
    library_kernels     the library's kernels for an operator
    interfaces          maps an operator's call to that of a library kernel: a table
    wrapped_numbers     numbers where the schema of an operator has a tensor
    counts              counts calls and fallbacks, with reasons
    packaged            the kernels of an exported package
    shapes, choice      shape patterns, and the choice among several kernels
"""
