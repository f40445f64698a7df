"""Random models that are valid by construction, what they are compared by, and how a failure is made small."""
