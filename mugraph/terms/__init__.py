"""What a program is written with: dimensions and types, interned terms, their text."""
