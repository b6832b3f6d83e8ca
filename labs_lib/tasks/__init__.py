"""The tasks of the course: what is asked, what counts as right, and where the data comes from."""
