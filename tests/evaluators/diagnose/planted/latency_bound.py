"""One warp a multiprocessor, and each load waits for the one before it."""

from torch import nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

__global__ void scale(const float* x, float* y, long n) {
    float before = 0.0f;
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) {
        const float v = x[i + (before == 12345.0f ? 1 : 0)];  // the address depends on the load before
        y[i] = 2.0f * v;
        before = v == 12345.0f ? 0.0f : v * 0.0f;
    }
}

torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const int blocks = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    scale<<<blocks, 32, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""
extension = load_inline(
    name="latency_bound",
    cpp_sources="torch::Tensor run(torch::Tensor x);",
    cuda_sources=cuda_source,
    functions=["run"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.run(x.contiguous())
