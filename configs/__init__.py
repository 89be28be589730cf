"""YAML presets of models, training and every pipeline."""
