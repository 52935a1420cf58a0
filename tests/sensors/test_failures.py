"""A Dagster run that failed: tried again when that can help, and told to a person when not."""

from typing import Any

import dagster as dg
import pytest

from sensors.failures import run_failures


def failed(error: Exception, instance: dg.DagsterInstance, tags: dict[str, str]) -> Any:
    @dg.job(name="ingest")
    def broken() -> None:
        @dg.op
        def fails() -> None:
            raise error

        fails()

    result = broken.execute_in_process(instance=instance, raise_on_error=False, tags=tags)
    context = dg.build_run_status_sensor_context(
        "run_failures", result.get_run_failure_event(), instance, result.dagster_run
    )
    found: Any = run_failures(context.for_run_failure())
    return list(found)


def test_a_lost_connection_is_tried_again_with_the_same_input(instance: dg.DagsterInstance) -> None:
    tags = {"dagster/partition": "20261129T1500-0001", "megahour/run": "r", "user": "me"}
    [request] = failed(ConnectionResetError("gone"), instance, tags)
    assert isinstance(request, dg.RunRequest)
    assert (request.job_name, request.partition_key) == ("ingest", "20261129T1500-0001")
    assert {"megahour/run": "r", "megahour/retry": "1"}.items() <= request.tags.items()


@pytest.mark.parametrize(
    ("error", "tags"),
    [
        (ValueError("the recipe selects nothing"), {}),
        (ConnectionResetError("gone"), {"megahour/retry": "2"}),
        (ConnectionResetError("gone"), {"dagster/backfill": "b"}),
    ],
)
def test_the_rest_needs_a_person(instance: dg.DagsterInstance, error: Exception, tags: dict[str, str]) -> None:
    [skipped] = failed(error, instance, tags)
    assert isinstance(skipped, dg.SkipReason)
