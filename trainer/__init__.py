"""What runs on GPU nodes: loader, model, optimizer, checkpoints, evaluation. Knows no Dagster."""
