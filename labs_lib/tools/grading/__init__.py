"""Grading a submitted notebook: a student's functions against our own checks, and a score sheet."""
