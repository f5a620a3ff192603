"""One block fits a multiprocessor, and there are half again as many blocks as multiprocessors."""

from torch import nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

__global__ void polynomial(const float* __restrict__ x, float* __restrict__ y, long n) {
    extern __shared__ float unused[];
    const long share = (n + gridDim.x - 1) / gridDim.x, end = min(n, (blockIdx.x + 1) * share);
    for (long i = blockIdx.x * share + threadIdx.x; i < end; i += blockDim.x) {
        const float v = x[i];
        float s = 0.0f;
        for (int k = 0; k < 64; k++) s = s * v + 1.0f / (k + 1);
        y[i] = s;
    }
}

torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const int blocks = at::cuda::getCurrentDeviceProperties()->multiProcessorCount * 3 / 2, bytes = 160 * 1024;
    cudaFuncSetAttribute(polynomial, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    polynomial<<<blocks, 1024, bytes, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""
extension = load_inline(
    name="wave_and_a_half",
    cpp_sources="torch::Tensor run(torch::Tensor x);",
    cuda_sources=cuda_source,
    functions=["run"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.run(x.contiguous())
