"""Command-line tools of the project: the model zoo and the benchmarks."""
