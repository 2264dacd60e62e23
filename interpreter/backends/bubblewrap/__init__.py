"""Sandboxes by bubblewrap: the embedded default where there is no container engine."""
