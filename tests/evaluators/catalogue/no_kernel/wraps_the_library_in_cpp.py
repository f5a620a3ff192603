"""Is a C++ extension that calls at::mm and at::tanh: own code by name, but the library does the work."""

# problem: tanhs_no_library
# device: cuda
# verdict: rejected
# rule: library
# defence: attribution of the code that runs

from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <ATen/ops/mm.h>
#include <ATen/ops/tanh.h>

at::Tensor tanhs(at::Tensor x, at::Tensor w) {
    for (int layer = 0; layer < 8; layer++) x = at::tanh(at::mm(x, w));
    return x;
}
"""
module = load_inline(name="wrapped", cpp_sources=SOURCE, functions=["tanhs"], extra_cflags=["-O0"])


class ModelNew(nn.Module):
    def forward(self, x, w):
        return module.tanhs(x, w)
