"""The checker of rules and what is its own. What it imports is trusted, too: :mod:`rules_db.stamp` lists all of it."""
