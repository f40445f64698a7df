"""Validation of operator properties."""
