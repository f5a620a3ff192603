"""32 polynomials at a time in a kernel that may use 24 registers."""

from torch import nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

__global__ void polynomial(const float* __restrict__ x, float* __restrict__ y, long n) {
    constexpr int MANY = 32;
    float in[MANY], out[MANY];
    const long start = blockIdx.x * 256L * MANY + threadIdx.x;
#pragma unroll
    for (int i = 0; i < MANY; i++) {
        in[i] = start + i * 256 < n ? x[start + i * 256] : 0.0f;
        out[i] = 0.0f;
    }
#pragma unroll 4
    for (int k = 0; k < 64; k++) {
        const float term = 1.0f / (k + 1);
#pragma unroll
        for (int i = 0; i < MANY; i++) out[i] = out[i] * in[i] + term;
    }
#pragma unroll
    for (int i = 0; i < MANY; i++)
        if (start + i * 256 < n) y[start + i * 256] = out[i];
}

torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const long n = x.numel();
    polynomial<<<(n + 8191) / 8192, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""
extension = load_inline(
    name="spills",
    cpp_sources="torch::Tensor run(torch::Tensor x);",
    cuda_sources=cuda_source,
    functions=["run"],
    extra_cuda_cflags=["-O3", "-maxrregcount=24"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.run(x.contiguous())
