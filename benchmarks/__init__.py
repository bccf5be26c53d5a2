"""Benchmarks: one script per question; every answer is a ratio measured in one process."""
