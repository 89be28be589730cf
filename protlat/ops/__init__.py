"""Pure tensor functions: no weights, no configs."""
