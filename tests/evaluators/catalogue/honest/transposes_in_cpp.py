"""Is a transpose in C++ through load_inline, tile by tile."""

# problem: transpose_no_library
# device: cpu
# verdict: correct
# defence: moving data is the task here, and its own code does it

from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <algorithm>

torch::Tensor transpose(torch::Tensor x) {
    const long batch = x.size(0), rows = x.size(1), columns = x.size(2), tile = 16;
    auto y = torch::empty({batch, columns, rows}, x.options());
    const float* from = x.data_ptr<float>();
    float* to = y.data_ptr<float>();
    for (long b = 0; b < batch; b++, from += rows * columns, to += rows * columns)
        for (long r0 = 0; r0 < rows; r0 += tile)
            for (long c0 = 0; c0 < columns; c0 += tile)
                for (long c = c0; c < std::min(c0 + tile, columns); c++)
                    for (long r = r0; r < std::min(r0 + tile, rows); r++)
                        to[c * rows + r] = from[r * columns + c];
    return y;
}
"""
module = load_inline(
    name="transpose", cpp_sources=SOURCE, functions=["transpose"], extra_cflags=["-O3", "-march=native"]
)


class ModelNew(nn.Module):
    def forward(self, x):
        return module.transpose(x)
