"""Matrix product by the library, bias and ReLU in place by rows."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
__global__ void add_relu(float* y, const float* bias, int width) {
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float& v = y[blockIdx.x * (long)width + i];
        v = fmaxf(v + bias[i], 0.f);
    }
}

torch::Tensor epilogue_rows(torch::Tensor y, torch::Tensor bias) {
    add_relu<<<y.size(0), 512>>>(y.data_ptr<float>(), bias.data_ptr<float>(), y.size(1));
    return y;
}
"""

extension = load_inline(
    name="epilogue_rows",
    cpp_sources="torch::Tensor epilogue_rows(torch::Tensor y, torch::Tensor bias);",
    cuda_sources=CUDA,
    functions=["epilogue_rows"],
)


class ModelNew(nn.Module):
    def __init__(self, inputs: int, outputs: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.gemm = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.randn(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.epilogue_rows(self.gemm(x), self.bias)
