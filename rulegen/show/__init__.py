"""Rules and equations explained in words and pictures."""
