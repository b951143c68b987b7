"""Where the metrics of a run go while it runs: metrics.jsonl, event files, Weights & Biases."""

import importlib
import json
import pathlib
import sys
import uuid
from typing import Any

from tensorboardX import SummaryWriter

from posattn_jax.system.files import read_json, read_metrics, write_json, write_text

WANDB_FILE = "wandb.json"  # in a run folder


class MetricWriter:
    """Writes metrics to `metrics.jsonl` (one object per line: step, epoch, split, name, value) and to event files.

    A run that resumes at a step drops the metrics that were written after that step.
    """

    def __init__(self, workdir: pathlib.Path, resume_step: int):
        self.path = workdir / "metrics.jsonl"
        if self.path.exists():
            kept = "".join(f"{json.dumps(row)}\n" for row in read_metrics(self.path) if row["step"] <= resume_step)
            write_text(self.path, kept)
        self._file = self.path.open("a", encoding="utf-8")
        # A queue that never fills: if the writer thread died of a full disk, it must not block the run.
        self._events = SummaryWriter(str(workdir / "events"), purge_step=resume_step + 1, max_queue=1_000_000)

    def write(self, step: int, epoch: float, split: str, metrics: dict[str, float | int]) -> None:
        for name, value in metrics.items():
            row = {"step": step, "epoch": epoch, "split": split, "name": name, "value": value}
            self._file.write(json.dumps(row) + "\n")
            self._events.add_scalar(f"{split}/{name}", value, step)
        self._file.flush()

    def close(self) -> None:
        self._file.close()
        self._events.close()


def load_wandb() -> Any:
    """Imports the library of the extra `wandb`. Raises ModuleNotFoundError if it is missing."""
    wandb: Any = importlib.import_module("wandb")
    if not hasattr(wandb, "init"):  # the library leaves folders wandb/, which can be imported too
        raise ModuleNotFoundError("No module named 'wandb'", name="wandb")
    return wandb


class WandbWriter:
    """Logs metrics as "SPLIT/NAME" to a run of a Weights & Biases project. The run is named after the run folder.

    A resumed run logs to the same run of the project, whose id is in `wandb.json`. The service does not accept a step
    twice: metrics that were logged after the checkpoint that a run resumes from stay there.
    """

    def __init__(self, workdir: pathlib.Path, project: str, config: dict[str, Any]):
        identity = read_json(workdir / WANDB_FILE) or {"id": uuid.uuid4().hex[:8]}
        write_json(workdir / WANDB_FILE, identity)
        self._run = load_wandb().init(
            project=project, name=str(workdir), resume="allow", dir=str(workdir), config=config, **identity
        )

    def write(self, step: int, epoch: float, split: str, metrics: dict[str, float | int]) -> None:
        values = {f"{split}/{name}": value for name, value in metrics.items()}
        self._run.log({"epoch": epoch, **values}, step=step)

    def close(self) -> None:
        self._run.finish(exit_code=int(sys.exc_info()[0] is not None))


Writer = MetricWriter | WandbWriter  # where metrics go
