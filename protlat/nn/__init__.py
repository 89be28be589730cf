"""Layers: they know nothing of data or training."""
