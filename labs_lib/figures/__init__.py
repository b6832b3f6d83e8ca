"""Figures: one style for the series, and functions that turn data into a figure."""
