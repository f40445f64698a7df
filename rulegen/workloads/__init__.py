"""Operator groups as data: what the generator enumerates."""
