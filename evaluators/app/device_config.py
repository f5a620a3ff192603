"""Shared by the commands that judge kernels: the device to use, and the host of its processes."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from evaluators.app.command import build, choose_device, is_refusal, one_of
from evaluators.base.cause import first_line
from evaluators.base.usage_error import UsageError
from evaluators.device.settings import Settings
from evaluators.records.problem import DEVICES
from evaluators.scheduler.host import Host


def settle_device(config: DictConfig) -> str:
    """Checks the config's key `device`, sets it to the device to use, and returns why. Raises UsageError."""
    one_of(config, "device", ("auto", *DEVICES))
    clustered = bool(OmegaConf.select(config, "ray.address"))
    config.device, how = choose_device(str(config.device), clustered=clustered)
    return how


def host_of(config: DictConfig, settings: Settings | None = None) -> Host:
    """The host of the config's pool, for its device; `settings` replace those of its evaluator. Raises
    UsageError."""
    settings = settings or build(config.evaluator)
    try:
        host: Host = build(config.pool)(settings=settings, on_gpu=config.device == "cuda")
    except (ValueError, ConnectionError) as error:
        if not is_refusal(error):
            raise
        raise UsageError(first_line(error)) from error
    return host
