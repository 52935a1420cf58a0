"""One program per claim: `python -m benchmarks.NAME [--quick] [--json FILE]`. Conditions stand beside the figures."""
