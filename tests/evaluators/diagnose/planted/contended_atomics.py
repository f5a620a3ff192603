"""Every thread adds to one address."""

from torch import nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

__global__ void sum(const float* x, double* total, long n) {
    double own = 0.0;
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) own += x[i];
    atomicAdd(total, own);
}

torch::Tensor run(torch::Tensor x) {
    auto total = torch::zeros({1}, x.options().dtype(torch::kDouble));
    const long n = x.numel();
    sum<<<(n / 8 + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), total.data_ptr<double>(), n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return total.to(torch::kFloat);
}
"""
extension = load_inline(
    name="contended_atomics",
    cpp_sources="torch::Tensor run(torch::Tensor x);",
    cuda_sources=cuda_source,
    functions=["run"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.run(x.contiguous())
