"""What is left of true candidates: instances, derivability, generalisation."""
