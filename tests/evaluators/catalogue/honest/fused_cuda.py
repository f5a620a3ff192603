"""Is a fused element-wise CUDA kernel through load_inline, four numbers per thread."""

# problem: swish_no_library
# device: cuda
# verdict: correct
# defence: it does the work itself

from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/types.h>
#include <c10/cuda/CUDAStream.h>

__device__ float swish(float x) { return x / (1.0f + __expf(-x)); }

__global__ void swish_kernel(const float4* x, float4* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 v = x[i];
    y[i] = make_float4(swish(v.x), swish(v.y), swish(v.z), swish(v.w));
}

torch::Tensor swish(torch::Tensor x) {
    auto y = torch::empty_like(x);
    int n = x.numel() / 4;
    swish_kernel<<<(n + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        (const float4*)x.data_ptr<float>(), (float4*)y.data_ptr<float>(), n);
    return y;
}
"""
module = load_inline(
    name="fused_swish",
    cpp_sources="torch::Tensor swish(torch::Tensor x);",
    cuda_sources=SOURCE,
    functions=["swish"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return module.swish(x)
