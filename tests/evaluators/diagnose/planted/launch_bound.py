"""A launch for each few rows: 64 launches of a microsecond or two. It was recorded with 512."""

from torch import nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

__global__ void scale(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}

torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const long n = x.numel(), piece = (n + 63) / 64;
    for (long start = 0; start < n; start += piece) {
        const int count = std::min(piece, n - start);
        scale<<<(count + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
            x.data_ptr<float>() + start, y.data_ptr<float>() + start, count);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    return y;
}
"""
extension = load_inline(
    name="launch_bound",
    cpp_sources="torch::Tensor run(torch::Tensor x);",
    cuda_sources=cuda_source,
    functions=["run"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.run(x.contiguous())
