"""TASO's substitution files."""
