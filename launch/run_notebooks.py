"""Runs all notebooks, or those named, and keeps their outputs: python launch/run_notebooks.py [NAME ...]"""

import argparse
import os
import pathlib

import nbformat
from nbclient import NotebookClient

FOLDER = pathlib.Path(__file__).parents[1] / "colabs"
# What is run for a TPU, at a small size on as many virtual devices as one has.
ON_VIRTUAL_DEVICES = {"train_on_tpu": {"POSATTN_SMALL": "1", "JAX_NUM_CPU_DEVICES": "8"}}


def run(path: pathlib.Path) -> None:
    """Writes what the cells print and draw into the notebook; not how far they are, nor which machine it was."""
    notebook = nbformat.read(path, as_version=4)
    metadata = dict(notebook.metadata)
    options = {"timeout": None, "record_timing": False, "coalesce_streams": True}
    os.environ.update(ON_VIRTUAL_DEVICES.get(path.stem, {}))
    NotebookClient(notebook, resources={"metadata": {"path": FOLDER}}, **options).execute()
    notebook.metadata = metadata
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(notebook, path)
    for variable in ON_VIRTUAL_DEVICES.get(path.stem, {}):
        del os.environ[variable]


names = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("names", nargs="*", metavar="NAME", choices=names, default=names, help=", ".join(names))
for name in parser.parse_args().names:
    print(name, flush=True)
    run(FOLDER / f"{name}.ipynb")
