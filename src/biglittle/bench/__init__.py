"""Benchmarks: tasks, systems side by side, metrics, and the report."""
