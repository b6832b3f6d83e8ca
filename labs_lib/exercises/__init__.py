"""Exercises: what a student's function must do, checked property by property."""
