"""Sandboxes: who has one, which kernels live in it, starting and stopping it, and removing the idle ones."""
