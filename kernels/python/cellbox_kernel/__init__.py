"""ipykernel with its known faults cured, and output that says where it belongs.

``app`` puts it together; ``kernel`` runs cells and takes interrupts; ``shell`` is IPython as these cells see it; ``errors``
words what went wrong; ``streams`` is standard output and error; ``loops`` lets cells run event loops of their own;
``publisher`` sends what clients listen to, ``wire`` packs it; ``packages`` finds what was installed meanwhile.
"""
