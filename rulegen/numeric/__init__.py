"""Equations on random inputs: counterexamples, float classes, trials of rules."""
