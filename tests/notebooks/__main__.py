"""Make the outputs of all notebooks anew: ``CELLBOX_API_KEY=… python -m tests.notebooks``, with a service that runs."""

from tests.notebooks.notebook import NAMES, outputs, read, write

for name in NAMES:
    notebook = read(name)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, (cell, made) in enumerate(zip(cells, outputs(notebook), strict=True), 1):
        cell["outputs"], cell["execution_count"] = made, count
    write(name, notebook)
    print(name)
