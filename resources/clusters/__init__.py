"""Where training runs, behind one small protocol. No Dagster here."""
