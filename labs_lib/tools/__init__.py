"""Command lines behind the Makefile, and what they are made of."""
