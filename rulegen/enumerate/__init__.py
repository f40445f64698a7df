"""Terms, fingerprints and pairs: from a workload to candidate substitutions."""
