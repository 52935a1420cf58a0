"""From landed recordings to measured episodes; ingesting twice is ingesting once."""
