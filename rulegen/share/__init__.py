"""Rules that come from outside: audit, import, merge."""
