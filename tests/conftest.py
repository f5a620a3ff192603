"""What all tests need."""

from __future__ import annotations

import os
import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts what goes on in the background with interrupts ignored, and so would
    # be every command that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# W&B reports its own errors through OpenTelemetry, which starts threads in every child forked after it.
# Only a process of one thread may enter namespaces (see evaluators/isolation/namespaces.py).
os.environ["WANDB_ERROR_REPORTING"] = "false"
