"""What random inputs say of an equation: counterexamples, float classes, trials of rules."""
