"""The parts of which programs are written: dimensions and types, interned terms, their text."""
