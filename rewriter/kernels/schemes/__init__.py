"""Fusion schemes: which operators of a model are one kernel, and the search for the best of them (STOF, section 4)."""
