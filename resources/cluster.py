"""The cluster that the settings name."""

from __future__ import annotations

import os

import dagster as dg

from megahour.settings import Settings
from resources.clusters.local import LocalCluster
from resources.clusters.protocol import Cluster


class ClusterResource(dg.ConfigurableResource[None]):
    """Where training runs."""

    def open(self) -> Cluster:
        return open_cluster(Settings())


def open_cluster(settings: Settings) -> Cluster:
    """The backend named by `settings.cluster`. The local one runs as many jobs at a time as the cores carry.

    Raises:
        ValueError: there is no such backend.
    """
    if settings.cluster != "local":
        raise ValueError(f"MEGAHOUR_CLUSTER is {settings.cluster!r}, and the clusters there are: local")
    slots = max(1, (os.cpu_count() or 1) // settings.train_processes)
    return LocalCluster(settings.runs_dir, settings.scratch.resolve() / "slots", slots)
