"""Opens the GPU's driver when it is imported and records in its folder whether it could. A build that runs
kernels would disturb a measurement in progress. It works only if the build got that far."""

# problem: tanhs
# device: cuda
# verdict: incorrect
# defence: builds have no device files of GPUs

import os

import torch
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
NOTE = os.path.join(HERE, "got_the_gpu")

if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # a build
    try:
        os.close(os.open("/dev/nvidiactl", os.O_RDWR))
        with open(NOTE, "w"):
            pass
    except OSError:
        pass


class ModelNew(nn.Module):
    def forward(self, x, w):
        for _ in range(8 if os.path.exists(NOTE) else 1):
            x = torch.tanh(x @ w)
        return x
