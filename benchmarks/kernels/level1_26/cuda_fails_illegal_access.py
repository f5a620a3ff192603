"""Writes far outside its output; otherwise a GELU whose grid strides over the elements."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
__device__ float gelu(float v) {
    return 0.5f * v * (1.f + erff(0.7071067812f * v));
}

__global__ void apply(const float* x, float* y, long size) {
    const long step = gridDim.x * (long)blockDim.x;
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < size; i += step)
        y[i + (1l << 40)] = gelu(x[i]);
}

torch::Tensor gelu_illegal(torch::Tensor x) {
    auto y = torch::empty_like(x);
    apply<<<132 * 8, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
"""

extension = load_inline(
    name="gelu_illegal",
    cpp_sources="torch::Tensor gelu_illegal(torch::Tensor x);",
    cuda_sources=CUDA,
    functions=["gelu_illegal"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.gelu_illegal(x)
