"""What Dagster's storage says of failed runs and of work that goes on."""

from pathlib import Path

import dagster as dg

from infra.laptop.instance import Instance, broken


@dg.op
def bring() -> None:
    try:
        raise KeyError("the cause")
    except KeyError as error:
        raise ValueError("the recordings are of another robot") from error


@dg.job
def ingest() -> None:
    bring()


def test_a_failed_run_is_told_with_its_error_until_it_is_run_again(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as dagster:
        result = ingest.execute_in_process(
            instance=dagster, tags={"dagster/partition": "b1", "megahour/retry": "1"}, raise_on_error=False
        )
        instance = Instance(tmp_path)
        (run,) = instance.runs()
        assert (run.run_id, run.job, run.partition, run.retries) == (result.run_id, "ingest", "b1", 1)
        assert {"ValueError", "KeyError"} <= set(run.errors[0])
        assert "the recordings are of another robot" in run.said
        assert broken(instance.runs()) == [run]
        assert instance.at_work() == 0

        dagster.create_run_for_job(ingest, tags={"dagster/partition": "b1"}, status=dg.DagsterRunStatus.STARTED)
        assert broken(instance.runs()) == []
        assert instance.at_work() == 1
        instance.close()


def test_a_run_whose_process_died_is_waited_for(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as dagster:
        run = dagster.create_run_for_job(ingest, status=dg.DagsterRunStatus.STARTED)
        dagster.report_run_failed(run, "its process is gone")
        instance = Instance(tmp_path)
        assert [run.failed for run in instance.runs()] == [True]
        assert broken(instance.runs()) == []
        instance.close()
