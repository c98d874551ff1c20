"""Training: data, batches that need no memory of their own, checkpoints that survive a pulled plug, and translation."""
