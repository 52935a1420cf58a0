"""When assets are made: jobs, and a nightly schedule."""
