"""Typings for programs that come without: unification of dimensions."""
