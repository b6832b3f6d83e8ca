"""What `make bench` measures: one module for each benchmark, and beside it the programs that do the work."""
