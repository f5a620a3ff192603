"""Whose code did the work: the kernel's own, a vendor library's, or PyTorch's."""
