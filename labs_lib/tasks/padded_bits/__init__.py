"""PaddedBits: the smallest task in which answers can be long or short, right or wrong, in every combination."""
