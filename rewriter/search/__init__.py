"""The search: matching, guards, moves, layouts, repeated layers."""
