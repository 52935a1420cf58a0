"""Manifests: the exact episodes of a training run, made by a query, named by their content."""
