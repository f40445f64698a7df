"""Where rules come from: enumeration, filters, pruning and certification of substitutions."""
