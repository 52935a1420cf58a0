"""The episode container: MCAP with H.264 cameras and topic groups laid out for training reads."""
