"""Bash cells in one shell that lives on, without a terminal.

``kernel`` runs cells, interrupts them, and keeps the state when the shell ends; ``shell`` is the shell's process and the way to
talk to it; ``scripts`` are the lines that it is given besides cells; ``shown`` makes of a file what clients can show.
"""
