"""Rules in words and pictures."""
