"""The command ``rulegen``."""
