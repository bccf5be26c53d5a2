"""Doors for users of other systems: their names, argument orders and array layouts on top of tirage's own rules."""
