"""A transpose whose tile in shared memory has no padding: 32 threads read one bank."""

from torch import nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

__global__ void transpose(const float* x, float* y, int n) {
    __shared__ float tile[32][32];
    int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (column < n && row + i < n) tile[threadIdx.y + i][threadIdx.x] = x[(long)(row + i) * n + column];
    __syncthreads();
    column = blockIdx.y * 32 + threadIdx.x;
    row = blockIdx.x * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (column < n && row + i < n) y[(long)(row + i) * n + column] = tile[threadIdx.x][threadIdx.y + i];
}

torch::Tensor run(torch::Tensor x) {
    const int n = x.size(0);
    auto y = torch::empty_like(x);
    const dim3 grid((n + 31) / 32, (n + 31) / 32), block(32, 8);
    transpose<<<grid, block, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""
extension = load_inline(
    name="bank_conflicts",
    cpp_sources="torch::Tensor run(torch::Tensor x);",
    cuda_sources=cuda_source,
    functions=["run"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.run(x.contiguous())
