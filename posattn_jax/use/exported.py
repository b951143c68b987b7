"""Runs an exported model with only jax and flatbuffers. This file is copied next to each model as `load.py`.

from load import load
model = load()          # of this folder
logits = model(pixels)  # [b, classes], for any b, on a CPU, GPU or TPU
model.about             # model.json: what the inputs are, and what the classes are called
"""

import hashlib
import json
import pathlib

import jax
import numpy as np
from jax import export


class Model:
    """An exported model.

    Attributes:
      about: the content of `model.json`.
    """

    def __init__(self, about: dict, exported: export.Exported):
        self.about = about
        self._call = jax.jit(exported.call)

    def __call__(self, *inputs) -> jax.Array:
        """The outputs [b ...] for inputs [b ...]. Raises ValueError unless these are as in `about["inputs"]`."""
        expected = self.about["inputs"]
        if len(inputs) != len(expected):
            raise ValueError(f"{len(inputs)} inputs: expected {', '.join(each['name'] for each in expected)}")
        arrays = [np.asarray(array) for array in inputs]
        for array, each in zip(arrays, expected, strict=True):
            shape, dtype = (len(arrays[0]), *each["shape"][1:]), np.dtype(each["dtype"])
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(f"{each['name']} is {array.dtype} {array.shape}: expected {dtype} {shape}")
        return self._call(*arrays)


def load(folder=None) -> Model:
    """The model in a folder, by default the folder of this file. Raises ValueError if the model is damaged."""
    folder = pathlib.Path(folder or pathlib.Path(__file__).parent)
    about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    data = (folder / about["file"]).read_bytes()
    if hashlib.sha256(data).hexdigest() != about["sha256"]:
        raise ValueError(f"{folder / about['file']} is not the one that model.json describes: export it again")
    return Model(about, export.deserialize(bytearray(data)))
