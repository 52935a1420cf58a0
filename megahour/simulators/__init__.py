"""Simulators, each in a process of its own: demonstrations come from them, and checkpoints are proven in them."""
