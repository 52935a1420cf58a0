"""What exists: thin asset definitions that call the library and return metadata worth looking at."""

import warnings

import dagster as dg

# Backfill policies are in beta and partitioned checks in preview, and Dagster says so at every load.
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)
