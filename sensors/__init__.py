"""Who reacts: sensors are thin shells over the pure decisions in `decide.py`."""
