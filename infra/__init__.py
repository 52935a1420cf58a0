"""What machines are: the laptop's set-up, demonstration and services."""
