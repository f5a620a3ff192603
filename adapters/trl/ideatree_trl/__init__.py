"""Rewards from an Ideatree reward server for TRL's trainers."""

from ideatree_trl.client import RewardClient, RewardError
from ideatree_trl.repair import KernelRepair
from ideatree_trl.reward import kernel_reward

__all__ = ["KernelRepair", "RewardClient", "RewardError", "kernel_reward"]
