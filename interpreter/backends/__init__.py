"""How sandboxes are made: one contract (``base``), and one package or module per backend."""
