"""The training loop: DeepSpeed engine, optimiser, checkpoints, metrics."""
