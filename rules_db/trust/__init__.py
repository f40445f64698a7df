"""The trusted base: what decides whether a rule stands."""
