"""The warehouse: Delta tables of what is known about recordings, episodes and evaluations, and queries over them."""
