"""How good predictions are: metrics with intervals, baselines, reports."""
