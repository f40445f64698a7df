"""The rule generator: enumeration, filters, pruning and certification of substitutions."""
