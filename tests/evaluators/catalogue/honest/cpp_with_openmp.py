"""Is C++ with OpenMP through load_inline: one row of the softmax after another, on all cores that it is
given."""

# problem: softmax_no_library
# device: cpu
# verdict: correct
# defence: it does the work itself

from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cmath>

torch::Tensor softmax(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const long rows = x.size(0), columns = x.size(1);
    const float* from = x.data_ptr<float>();
    float* to = y.data_ptr<float>();
    #pragma omp parallel for
    for (long r = 0; r < rows; r++) {
        const float* in = from + r * columns;
        float* out = to + r * columns;
        float most = in[0];
        for (long c = 1; c < columns; c++) most = std::max(most, in[c]);
        double sum = 0;
        for (long c = 0; c < columns; c++) sum += out[c] = std::exp(in[c] - most);
        const float scale = 1 / sum;
        for (long c = 0; c < columns; c++) out[c] *= scale;
    }
    return y;
}
"""
module = load_inline(
    name="softmax_rows",
    cpp_sources=SOURCE,
    functions=["softmax"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
    extra_ldflags=["-lgomp"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return module.softmax(x)
