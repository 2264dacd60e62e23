"""The figures of the README: ``python -m tests.bench [NAME]``, or ``make bench ONLY=NAME``."""
