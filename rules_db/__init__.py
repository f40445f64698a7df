"""What a rule is, what makes it true, and where rules live."""
