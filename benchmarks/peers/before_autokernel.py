"""Code before AutoKernel's file, which asserts that its tensors are on a GPU. A build without a GPU compiles
on meta tensors; this makes them pass for GPU tensors."""

import torch

if not torch.cuda.is_available():
    torch.Tensor.is_cuda = property(lambda tensor: tensor.is_meta)
