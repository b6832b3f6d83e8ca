"""Tests of `make grade`."""
