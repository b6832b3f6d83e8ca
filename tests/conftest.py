"""Unit tests compute with the pins of the tiny profile, which act only before torch is first imported."""

from labs_lib.runtime import start

start("tiny")
