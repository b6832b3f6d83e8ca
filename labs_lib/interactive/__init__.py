"""Figures with controls: sliders where a front end shows them, one static figure everywhere else."""
