"""Kernels are recognised by the names in libraries' files: in some compiled here, and in those installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from evaluators.judge.attribution.vendor_kernels import (
    VendorKernels,
    defines,
    function_of,
    installed,
    registered,
    triton_kernels,
)

SOFTMAX = "_ZN42_GLOBAL__N__3f5cbf6f_7_SoftMax_cu_9f978f6320softmax_warp_forwardIfLi3EEEvPT_"
COPY = "_ZN2at6native4copyIfEEvPT_"
STATIC = "_Z6staticPf"
LIBRARY = f"""
__attribute__((section(".nv_fatbin"))) const int device_code = 1;
const char* const names[] = {{"{SOFTMAX}", "{COPY}", "{STATIC}", "relu", "about _ZN2at9documentsEv it"}};
"""
SHIPPED = '''
import triton

@triton.autotune(configs=[], key=[])
@triton.jit
def shipped(x):
    pass

@triton.jit(do_not_specialize=["x"])
def shipped_too(x):
    pass

@torch.jit.script
def no_kernel(x):
    """Not by triton.jit."""
'''
OWN = "import triton\n@triton.jit\ndef shipped(x): ...\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared object like those with CUDA code, without symbols."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "library.c").write_text(LIBRARY)
    path = folder / "library.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-s", folder / "library.c", "-o", path], check=True)
    return path


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    (folder / "version.py").write_text("version = 1")
    (folder / "ops").mkdir()
    (folder / "ops" / "kernels.py").write_text(SHIPPED)
    (folder / "ops" / "of_another_python.py").write_text("import triton.jit\nmatch = = 1")
    return folder


@pytest.fixture(scope="module")
def kernels(library: Path, package: Path, tmp_path_factory: pytest.TempPathFactory) -> VendorKernels:
    return VendorKernels.of([library], package, tmp_path_factory.mktemp("kept"))


def test_a_files_names_are_those_of_its_kernels(library: Path, tmp_path: Path) -> None:
    assert registered(library) == {SOFTMAX, COPY, STATIC}
    without = tmp_path / "without.so"
    subprocess.run(["objcopy", "--remove-section", ".nv_fatbin", library, without], check=True)
    assert registered(without) == set(), "no CUDA code"
    (tmp_path / "script.so").write_text("INPUT(libc.so.6)")
    assert registered(tmp_path / "script.so") == set()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_a_file_of_nvccs_has_the_names_that_its_device_code_has(tmp_path: Path) -> None:
    source = """
namespace { template <typename T, int N> __global__ void hidden(T* x) { x[0] = N; } }
namespace at { template <typename F> __global__ void each(F f) { f(threadIdx.x); } }
static __global__ void alone(float* x) { x[0] = 1; }
void run(float* x) {
  hidden<float, 3><<<1, 1>>>(x);
  at::each<<<1, 1>>>([=] __device__ (int i) { x[i] = i; });
  alone<<<1, 1>>>(x);
}
"""
    (tmp_path / "some.cu").write_text(source)
    flags = ["-arch=sm_90", "--extended-lambda", "-Xcompiler", "-fPIC", "-shared"]
    subprocess.run(["nvcc", *flags, "some.cu", "-o", "some.so"], cwd=tmp_path, check=True)
    (tmp_path / "bare.so").write_bytes((tmp_path / "some.so").read_bytes())
    subprocess.run(["strip", "bare.so"], cwd=tmp_path, check=True)
    subprocess.run(
        ["nvcc", "-arch=sm_90", "--extended-lambda", "-cubin", "some.cu"], cwd=tmp_path, check=True
    )
    symbols = subprocess.run(
        ["readelf", "-sW", "some.cubin"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    on_device = {line.split()[-1] for line in symbols.stdout.splitlines() if " FUNC " in line}
    found = registered(tmp_path / "bare.so")
    assert {function_of(name) for name in found} >= {"(anonymous)::hidden", "at::each", "alone"}
    same_for_each_file = {name for name in on_device if "_GLOBAL__N_" not in name}
    assert len(same_for_each_file) == 2
    assert same_for_each_file <= found


def test_shipped_triton_kernels_are_found(package: Path) -> None:
    assert set(triton_kernels(package)) == {"shipped", "shipped_too"}


@pytest.mark.parametrize(
    ("name", "function"),
    [
        (SOFTMAX, "(anonymous)::softmax_warp_forward"),
        (COPY, "at::native::copy"),
        ("_ZN2at6native18elementwise_kernelILi4ENS0_3NegEEEviT0_", "at::native::elementwise_kernel"),
        (STATIC, "static"),
        ("_ZL6staticPf", "static"),
        ("_ZNSt3__14workEv", "std::__1::work"),
        ("softmax", "softmax"),
        ("_Zsomething", "_Zsomething"),
    ],
)
def test_the_function_of_a_mangled_name(name: str, function: str) -> None:
    assert function_of(name) == function


@pytest.mark.parametrize(
    ("source", "name", "is_defined"),
    [
        ("def softmax(x):", "softmax", True),
        ("def softmax_rows(x):", "softmax", False),
        ("softmax[(1,)](x)", "softmax", False),
        ("__global__ void __launch_bounds__(256) softmax(float* x) {", "softmax", True),
        ("template <int N>\n__global__ void\nsoftmax(float* x) {", "softmax", True),
        ("__global__ void other(float* x) { softmax(x); }", "softmax", False),
        ("softmax<<<1, 1>>>(x);", "softmax", False),
    ],
)
def test_functions_that_a_source_defines(source: str, name: str, is_defined: bool) -> None:
    assert defines(source, name) is is_defined


@pytest.mark.parametrize(
    ("name", "source", "is_a_librarys"),
    [
        (SOFTMAX, "", True),
        (SOFTMAX, "__global__ void softmax_warp_forward(float* x) {", True),  # a decoy: not of that file
        (SOFTMAX.replace("3f5cbf6f", "00000000"), "", True),  # the library's template, compiled here
        (SOFTMAX.replace("3f5cbf6f", "00000000"), "__global__ void softmax_warp_forward(float* x) {", False),
        (COPY.replace("If", "Id"), "", True),
        ("_ZN3own4copyIfEEvPT_", "", False),
        (STATIC, "", True),
        (STATIC, "__global__ void static(float* x) {", False),
        ("_Z7softmaxPf", "", False),
        ("relu", "", False),  # any text in a file is no kernel's name
        ("shipped", "from torch.ops.kernels import shipped", True),
        ("shipped", OWN, False),
        ("candidate.shipped", OWN, False),
        ("torch.ops.kernels.shipped_too", OWN, True),
        ("no_kernel", "", False),
        ("triton_poi_fused_add_0", "", True),
        ("triton_poi_fused_add_0", "def triton_poi_fused_add_0(x):", False),
        ("triton_softmax", "", False),
        ("fused_mul_sigmoid", "", True),
        ("fused_mul_sigmoid", "def fused_mul_sigmoid(x):", False),
        ("bessel_j0_forward_vectorized4_kernel", "", True),
        ("reduction_prod_kernel", "", True),
        ("softmax_kernel", "", False),
        ("_ZN3cub17CUB_300001_SM_90018DeviceReduceKernelIfEEvPT_", "", True),
        ("_ZN6thrust4workIfEEvPT_", "", True),
        ("_Z4sumsIN3cub11BlockReduceIfEEEvPf", "__global__ void sums(float* x) {", False),
    ],
)
def test_kernels_are_attributed_by_name(
    kernels: VendorKernels, name: str, source: str, is_a_librarys: bool
) -> None:
    assert kernels.holds(name, source) is is_a_librarys


def test_names_are_kept_for_these_versions_of_the_files(
    library: Path, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, folder = tmp_path / "mine.so", tmp_path / "kept"
    shutil.copy(library, mine)
    assert VendorKernels.of([mine], package, folder).holds(COPY, "")
    (kept,) = folder.iterdir()
    kept.write_text("")
    assert not VendorKernels.of([mine], package, folder).holds(COPY, ""), "it was read, and not made again"
    os.utime(mine, (1, 1))
    assert VendorKernels.of([mine], package, folder).holds(COPY, "")
    (other,) = folder.iterdir()
    assert other.name != kept.name, "what is out of date is removed"


def test_a_folder_that_cannot_be_written_keeps_nothing(library: Path, package: Path) -> None:
    assert VendorKernels.of([library], package, library / "no folder").holds(COPY, "")


@pytest.mark.slow
def test_the_installed_kernels_include_torchs_triton_kernels(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert installed(tmp_path).holds("_bsr_softmax_kernel", "")
    assert not installed(tmp_path).holds("layer_norm_rows", "")


@pytest.mark.gpu
def test_the_installed_kernels_include_torchs(tmp_path: Path) -> None:
    """As a trace reports them; none has its library in its name."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    from evaluators.system.cupti_trace import DeviceTrace

    x = torch.randn(64, 512, device="cuda")
    image = torch.randn(2, 8, 32, 32, device="cuda")
    torch.cuda.synchronize()
    with DeviceTrace() as trace:
        torch.softmax(x, -1)
        torch.softmax(x.repeat(1, 32), -1)
        torch.nn.functional.layer_norm(x, (512,))
        x.sum(-1), x.sort(-1), x.cumsum(-1), x.t().contiguous(), torch.tanh(x), x.topk(3)
        torch.nn.functional.max_pool2d(image, 2)
        torch.nn.functional.scaled_dot_product_attention(image, image, image)
        torch.special.bessel_j0(x)
        torch.cuda.synchronize()
    kernels = installed(tmp_path)
    assert len(trace.totals()) >= 10
    own = [name for name, _ in trace.totals() if not kernels.holds(name, "")]
    assert not own
