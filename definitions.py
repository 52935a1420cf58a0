"""The code location: everything Dagster shows and runs."""

import dagster as dg

from assets import checks, curation, evaluation, ingest, training
from jobs.asset_jobs import STAGES
from jobs.everything import everything
from jobs.nightly import nightly
from resources.cluster import ClusterResource
from resources.lake import LakeResource
from resources.trainer import TrainerResource
from sensors.evaluate import evaluate_checkpoints
from sensors.failures import run_failures
from sensors.landing import landing
from sensors.launch import launch_training
from sensors.observe import observe_training
from sensors.refresh import refresh
from sensors.sweep import sweep_runs

defs = dg.Definitions(
    assets=[*dg.load_assets_from_modules([ingest, curation, training, evaluation]), training.checkpoint],
    asset_checks=dg.load_asset_checks_from_modules([checks]),
    jobs=[*STAGES, everything],
    schedules=[nightly],
    sensors=[landing, refresh, launch_training, observe_training, evaluate_checkpoints, run_failures, sweep_runs],
    resources={"lake": LakeResource(), "cluster": ClusterResource(), "trainer": TrainerResource()},
    executor=dg.in_process_executor,
)
