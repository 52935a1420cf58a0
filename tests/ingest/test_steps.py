"""Steps can be switched off unless they are critical, and never more of them run than memory allows."""

from __future__ import annotations

import pytest

from megahour.ingest.steps import STEPS, active_steps, fitting_workers, machine_memory_mb, time_limit_s


def test_named_steps_are_off() -> None:
    names = {step.name for step in active_steps(" frozen_share, idle_share ,")}
    assert names == {step.name for step in STEPS} - {"frozen_share", "idle_share"}


@pytest.mark.parametrize("skip", ["transcode", "frozen_shar"])
def test_a_critical_or_unknown_step_cannot_be_switched_off(skip: str) -> None:
    with pytest.raises(ValueError, match=rf"names {skip}; what can be switched off is action_jump"):
        active_steps(skip)


def test_memory_limits_the_workers() -> None:
    assert fitting_workers(STEPS, wanted=8, memory_mb=1300) == 2
    assert fitting_workers(STEPS, wanted=2, memory_mb=100_000) == 2
    assert fitting_workers(STEPS, wanted=8, memory_mb=100) == 1
    assert machine_memory_mb() > 100


def test_large_recordings_have_more_time() -> None:
    assert time_limit_s(0, 3600.0) == 3600.0
    assert time_limit_s(10**9, 3600.0) == 3600.0 + 10_000
