"""Weights & Biases as a writer of metrics, for who asks for it with `--wandb=PROJECT`."""

import importlib
import json
import pathlib
import sys
import uuid
from typing import Any

from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json

FILE = "wandb.json"


def load() -> Any:
    """The library, which is in the extra `wandb`; InputError where it is missing."""
    try:
        module = importlib.import_module("wandb")
        _ = module.init  # a folder wandb/, as the library leaves behind, can be imported as well
    except (ImportError, AttributeError) as error:
        raise InputError("--wandb: Weights & Biases is not installed: pip install wandb") from error
    return module


class WandbWriter:
    """Logs metrics as "SPLIT/NAME" to a run of a project, which is named after the run folder.

    A run folder that goes on logs to the same run, whose id it keeps in `wandb.json`. The service takes no step twice:
    what was logged after the checkpoint that a run goes on from stays there.
    """

    def __init__(self, workdir: pathlib.Path, project: str, config: dict[str, Any]):
        path = workdir / FILE
        if not path.exists():
            write_json(path, {"id": uuid.uuid4().hex[:8]})
        identity = json.loads(path.read_text(encoding="utf-8"))["id"]
        self._run = load().init(
            project=project, name=str(workdir), id=identity, resume="allow", dir=str(workdir), config=config
        )

    def write(self, step: int, epoch: float, split: str, metrics: dict[str, float | int]) -> None:
        values = {f"{split}/{name}": value for name, value in metrics.items()}
        self._run.log({"epoch": epoch, **values}, step=step)

    def close(self) -> None:
        self._run.finish(exit_code=int(sys.exc_info()[0] is not None))
