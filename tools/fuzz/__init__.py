"""Attacks on the optimiser by material that nobody chose: ``python -m tools.fuzz``."""
