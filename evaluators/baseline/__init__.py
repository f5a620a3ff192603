"""The command `ideatree baseline`: times eager PyTorch and `torch.compile` on a suite."""
