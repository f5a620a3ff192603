"""Clocks of a pool: how long kernels wait for devices and hold them, and how long devices are idle although
kernels are on their way to one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evaluators.records.time_spent import DeviceLease


class Demand:
    """Adds up the time in which at least one kernel is on its way to a device: being built, or waiting."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds from any origin."""
        self._clock = clock
        self._kernels = 0
        self._total_s, self._since = 0.0, clock()

    @contextmanager
    def counting(self, kernels: int) -> Iterator[None]:
        """Counts more kernels during the block, or fewer if the number is negative."""
        self._add(kernels)
        try:
            yield
        finally:
            self._add(-kernels)

    def seconds(self) -> float:
        """The time so far."""
        now = self._clock()
        if self._kernels > 0:
            self._total_s += now - self._since
        self._since = now
        return self._total_s

    def _add(self, kernels: int) -> None:
        self.seconds()
        self._kernels += kernels


class LeaseClock:
    """Times one kernel's waiting for devices and its leases, over several tries."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds from any origin."""
        self._clock = clock
        self._device, self._since = "", 0.0
        self._holds = False
        self._waited_s = self._held_s = self._building_s = self._idle_s = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the block as waiting."""
        start = self._clock()
        try:
            yield
        finally:
            self._waited_s += self._clock() - start

    @contextmanager
    def holding(self, device: int, *, idle_s: float = 0.0) -> Iterator[None]:
        """Counts the block as a lease of the device, which was `idle_s` idle before although kernels were on
        their way. A block in such a block ends the lease, too."""
        if not self._holds:
            self._device, self._since, self._holds = str(device), self._clock(), True
            self._idle_s += idle_s
        try:
            yield
        finally:
            self._held_s, self._holds = self._held_now_s(), False

    @contextmanager
    def building(self) -> Iterator[None]:
        """Counts the block as the part of a lease in which something is built."""
        start = self._clock()
        try:
            yield
        finally:
            self._building_s += self._clock() - start

    def lease(self) -> DeviceLease:
        """All leases up to now as one."""
        return DeviceLease(
            device=self._device,
            waited_s=self._waited_s,
            held_s=self._held_now_s(),
            building_s=self._building_s,
            idle_s=self._idle_s,
        )

    def _held_now_s(self) -> float:
        return self._held_s + (self._clock() - self._since if self._holds else 0.0)
