"""Rewards from an Ideatree reward server for TRL's trainers."""

from ideatree_trl.repair import KernelRepair
from ideatree_trl.reward import kernel_reward

__all__ = ["KernelRepair", "kernel_reward"]
