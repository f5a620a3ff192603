"""When a device can no longer be trusted."""

from __future__ import annotations

import random

from evaluators.scheduler.device_health import FIRST_READINGS, SLOWER, DeviceHealth


def reasons(health: DeviceHealth, device: int, readings_ms: list[float], model: str = "H200") -> list[str]:
    return [health.worked(device, model, each) for each in readings_ms]


def test_two_failures_in_a_row_are_too_many() -> None:
    health = DeviceHealth()
    assert health.at_fault(0, "gone") == ""
    assert health.at_fault(1, "gone") == ""
    assert "gone" in health.at_fault(0, "gone")


def test_a_verdict_between_two_failures_forgives_the_first() -> None:
    health = DeviceHealth()
    for _ in range(5):
        assert health.at_fault(0, "gone") == ""
        assert health.worked(0, "H200", None) == ""


def test_a_steady_device_with_noise_is_trusted() -> None:
    health, rng = DeviceHealth(), random.Random(0)
    assert not any(reasons(health, 0, [rng.uniform(0.9, 1.1) for _ in range(1000)]))


def test_one_slow_reading_is_nothing() -> None:
    health = DeviceHealth()
    assert not any(reasons(health, 0, [1.0] * 5 + [5.0, 1.0] * 10))


def test_the_second_slow_reading_in_a_row_counts() -> None:
    health = DeviceHealth()
    *before, last = reasons(health, 0, [1.0] * 9 + [1.3, 1.3])
    assert not any(before)
    assert last == "its canary takes 1.3 ms; 1 ms were expected"


def test_a_slow_drift_is_compared_with_the_first_readings() -> None:
    health = DeviceHealth()
    drift = [1.01**n for n in range(60)]
    found = reasons(health, 0, drift)
    first = next(n for n, reason in enumerate(found) if reason)
    assert SLOWER < drift[first] < SLOWER * 1.1


def test_a_device_that_was_slow_from_the_start_is_found_by_its_peers() -> None:
    health = DeviceHealth()
    for peer in (0, 1, 2):
        assert not any(reasons(health, peer, [1.0] * FIRST_READINGS))
    assert reasons(health, 3, [1.4, 1.4])[-1]
    assert not any(reasons(health, 4, [1.4] * 20, model="L40S")), "another model is no peer"
    assert not any(reasons(health, 0, [1.0] * 5))


def test_a_slow_peer_does_not_count_against_a_device() -> None:
    health = DeviceHealth()
    reasons(health, 0, [2.0] * FIRST_READINGS)
    assert not any(reasons(health, 1, [1.0] * 20))
