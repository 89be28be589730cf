"""Using a model: embeddings and masked-residue predictions."""
