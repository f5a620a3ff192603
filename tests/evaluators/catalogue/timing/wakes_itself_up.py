"""Has a timer wake up one of its child processes, which computes while all of them should be stopped."""

# problem: tanhs
# device: cpu
# verdict: rejected|no_gain
# rule: not still
# defence: the time that a process has run is compared with the time it was allowed to run

import ctypes
import subprocess
from pathlib import Path

import torch
from torch import nn

CODE = """
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
static void ignore(int number) {}
void start(void) {
    if (fork() != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGCONT, ignore);
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGCONT;
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    struct itimerspec soon = {{0, 200000}, {0, 200000}};
    for (;;) {
        timer_settime(timer, 0, &soon, 0);
        for (volatile int i = 0; i < 20000; i++) {}
    }
}
"""
Path("own.c").write_text(CODE)
subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "own.c", "-o", "own.so", "-lrt"], check=True)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        ctypes.CDLL("./own.so").start()

    def forward(self, x, w):
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
