"""A mesh of processes on one machine: for trying the product, for tests and for benches."""
