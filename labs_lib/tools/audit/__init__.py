"""The audit: everything that the runs report, recomputed from their raw JSON evidence in plain Python.

It needs neither torch nor any other package, and imports nothing of this library but itself: its readings of the
verifier's rule, of the formulas and of the random streams are its own, so that one mistake cannot confirm itself.
"""
