"""Pruning and generalisation of true candidates: instances, derivability, wider rules."""
