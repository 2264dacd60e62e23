"""Sandboxes as containers of a Docker engine. The Docker library is imported here and nowhere else."""
