"""An OpenEnv environment for kernels, rewarded by an Ideatree reward server."""

from .client import KernelEnv
from .models import KernelAction, KernelObservation, KernelState

__all__ = ["KernelAction", "KernelEnv", "KernelObservation", "KernelState"]
