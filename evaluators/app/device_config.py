"""Shared by the commands that judge kernels: the device to use, and the host of its processes."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from evaluators.app.command import build, choose_device, is_refusal, one_of
from evaluators.base.cause import first_line
from evaluators.base.usage_error import UsageError
from evaluators.device.settings import Settings
from evaluators.queue.queue_evaluator import QueueEvaluator
from evaluators.records.problem import DEVICES
from evaluators.scheduler.host import Host


def settle_device(config: DictConfig) -> str:
    """Checks the config's key `device`, sets it to the device to use, and returns why. Raises UsageError."""
    one_of(config, "device", ("auto", *DEVICES))
    config.device, how = choose_device(str(config.device), clustered=is_elsewhere(config))
    return how


def is_elsewhere(config: DictConfig) -> bool:
    """Whether other machines have the devices: those of a Ray cluster, or the workers of a queue."""
    return bool(OmegaConf.select(config, "ray.address")) or is_queue(config)


def is_queue(config: DictConfig) -> bool:
    """Whether the workers of a queue measure."""
    return "path" in (config.get("pool") or {})


def host_of(config: DictConfig, settings: Settings | None = None) -> Host:
    """The host of the config's pool, for its device; `settings` replace those of its evaluator. Raises
    UsageError, also for a queue."""
    return require_host(host_or_queue(config, settings))


def require_host(found: Host | QueueEvaluator) -> Host:
    """The host. Raises UsageError for a queue, whose workers have their own hosts."""
    if isinstance(found, QueueEvaluator):
        raise UsageError("pool=folder is for ideatree run and campaign; use pool=local or pool=ray here")
    return found


def host_or_queue(config: DictConfig, settings: Settings | None = None) -> Host | QueueEvaluator:
    """As `host_of`, and for `pool=folder` the evaluator itself, which needs no pool. Raises UsageError."""
    settings = settings or build(config.evaluator)
    try:
        found: Host | QueueEvaluator = build(config.pool)(settings=settings, on_gpu=config.device == "cuda")
    except (ValueError, ConnectionError) as error:
        if not is_refusal(error):
            raise
        raise UsageError(first_line(error)) from error
    return found
