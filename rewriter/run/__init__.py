"""One run: import, search, acceptance, writing."""
