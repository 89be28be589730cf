"""Side-by-side measurements: one script per question, run with `make bench` or `python -m benchmarks.<name>`."""
