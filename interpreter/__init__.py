"""Cellbox: a stateful code interpreter service for AI agents. This package is the trusted service and its client."""

__version__ = "0.1.0"
