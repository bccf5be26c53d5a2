"""Exact rules on integers that every kernel calls: of one token, of a threshold, of a temperature, of a probability."""
