"""The bias bench of lab 06: policies of some thousand parameters, trained by the dozen at once."""
