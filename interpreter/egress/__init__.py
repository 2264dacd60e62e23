"""The way out of sandboxes, as the service sees it: who may reach what, and the process that carries it."""
