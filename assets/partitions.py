"""The three things that are partitions: an ingest batch, a recipe, a run. All dynamic: the sensors add their keys.

Recipes are dynamic too, although they are files: a recipe that cannot be read must not keep the code location from
loading, and one that is dropped into the folder is there at the next tick without a reload.
"""

from __future__ import annotations

import dagster as dg

ingest_batches = dg.DynamicPartitionsDefinition(name="ingest_batch")
recipes = dg.DynamicPartitionsDefinition(name="recipe")
runs = dg.DynamicPartitionsDefinition(name="run")

RUN_TAG = "megahour/run"
STEP_TAG = "megahour/step"
EVENT_TAG = "megahour/event"

DATA_TEAM = ["team:robot-data"]
TRAINING_TEAM = ["team:robot-learning"]
