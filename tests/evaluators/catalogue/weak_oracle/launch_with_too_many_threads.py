"""Launches a kernel with more threads than a block can have and never checks for the error, so the output
buffer stays as it was."""

# problem: softmax
# device: cuda
# verdict: incorrect|crashed|runtime_error
# defence: outputs are poisoned, and every call has new inputs

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/types.h>

__global__ void softmax_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}

torch::Tensor softmax(torch::Tensor x, torch::Tensor y) {
    int n = x.numel();
    softmax_kernel<<<n / 4096, 4096>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    cudaGetLastError();
    return y;
}
"""
module = load_inline(
    name="too_many",
    cpp_sources="torch::Tensor softmax(torch::Tensor x, torch::Tensor y);",
    cuda_sources=SOURCE,
    functions=["softmax"],
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.buffer = None

    def forward(self, x):
        if self.buffer is None:
            self.buffer = torch.softmax(x, -1)
        return module.softmax(x, self.buffer)
