"""One machine: installation, the demonstration, Dagster's services."""
