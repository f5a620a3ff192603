"""Building, checking and timing of untrusted kernels. Knows nothing of search.

Where to look, from the command down to the machine (each file says more at its top):

    the command        evaluate, cli, report
    words              problem, reference, evaluation, cause; problems/ has the shipped references
    two lanes          pool, devices, health; on Ray: cluster, in threads: local
    builds             build, build_cache, inline (load_inline, headers/), warmup (Triton)
    a device           worker, watch, processes, standby
    the reference      reference_session, double (float64), correctness, degenerate; layouts, nested (inputs)
    its inputs         distributions, usable_distributions, roundings
    the verdict        referee, court, trial, examination, audit, contest, side, arena, timing, evenness
    between calls      weights, chain (what they are given changes)
    own work or not    attribution, census; peek (CPU); device_trace, library_kernels, libraries (GPU)
    what can be        roofline, work, ceilings
    a busy machine     deadline
    untrusted code     runner, zygote, nest, sandbox, namespaces, process_tree, scratch
    plumbing           channel, cuda_driver, elf, cache
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
"""This package's folder, from which its files are found: a module that moves takes no path along."""
