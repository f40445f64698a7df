"""Rules: the records, the checker that decides whether one is true, and the places where rules are kept."""
