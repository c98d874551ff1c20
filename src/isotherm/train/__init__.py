"""Training: data and batches, checkpoints, runs that resume exactly, translation, and sweeps over many small models."""
