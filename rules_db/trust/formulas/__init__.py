"""Formulas of entries: what block graphs and their bodies compute, for all sizes at once."""
