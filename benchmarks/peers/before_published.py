"""Code before a published file: removes sm_70, which CUDA 13 lacks, so that the build is for this GPU."""

from torch.utils import cpp_extension

_load_inline = cpp_extension.load_inline


def _for_this_gpu(*, extra_cuda_cflags=(), **options):
    flags = [flag for flag in extra_cuda_cflags if not flag.startswith("-arch")]
    return _load_inline(extra_cuda_cflags=flags, **options)


cpp_extension.load_inline = _for_this_gpu
