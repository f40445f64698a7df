"""Producers of the data that the package ships."""
