"""Benchmarks: each module prints one table; none is a test."""
