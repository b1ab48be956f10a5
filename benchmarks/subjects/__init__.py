"""Programs that measure zlinkpy. Each prints one JSON line with the metrics that benchmarks/run.py names for it."""
