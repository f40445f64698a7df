"""Two models compared, whoever made them: what corresponds, and what of the rest is proved equal, tested equal or different."""
