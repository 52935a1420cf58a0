"""What assets talk to: the lake, the cluster, the trainer's programs."""
