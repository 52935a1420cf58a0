"""The data plane of Megahour: recordings in, episodes, tables and manifests out. Knows no Dagster and no torch."""

__version__ = "0.1.0"
