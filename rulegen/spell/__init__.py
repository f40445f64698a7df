"""Spelling: from the definition of a composite operator to the rules that find it however a model spells it."""
