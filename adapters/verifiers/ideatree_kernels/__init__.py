"""GPU kernels judged by an Ideatree reward server, as a taskset for verifiers."""

from ideatree_kernels.taskset import KernelTaskset

__all__ = ["KernelTaskset"]
