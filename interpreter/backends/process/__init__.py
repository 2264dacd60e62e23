"""Sandboxes without isolation, for development and hosts that have nothing else. Only ever chosen by name."""
