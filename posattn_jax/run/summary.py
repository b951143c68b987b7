"""Writes the results of a finished run: the arrays of its positional parts, its summary, and its pictures."""

import math
import pathlib
import resource
import subprocess
import textwrap
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from posattn_jax.analysis.savings import what_spans_saved
from posattn_jax.data.images import GridImages
from posattn_jax.data.pipeline import checksums
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.nn.span import LEARNED
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops.span import deviations
from posattn_jax.run import span_saving
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import RunError
from posattn_jax.system.files import read_metrics, write_atomically, write_json
from posattn_jax.system.processes import is_first
from posattn_jax.tasks.sentence_prediction import SentencePrediction
from posattn_jax.tasks.task import Task
from posattn_jax.train.loop import Trainer
from posattn_jax.train.member import Member
from posattn_jax.train.progress import WIDTH

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def write(trainer: Trainer, configs: Sequence[ConfigDict], workdirs: Sequence[pathlib.Path]) -> None:
    """Writes the results of every run of a finished trainer. All processes must call it; the first one writes."""
    describe = jax.jit(trainer.task.describe, out_shardings=NamedSharding(trainer.program.mesh, PartitionSpec()))
    for member, config, workdir in zip(trainer.members, configs, workdirs, strict=True):
        arrays = _positions(trainer, member, describe)
        if is_first():
            _finish(trainer, member, arrays, config, workdir)


def _positions(trainer: Trainer, member: Member, describe: Callable[[Any], Any]) -> dict[str, np.ndarray]:
    """The positional arrays of the best epoch, see `Task.describe`, and an image to draw them on."""
    restored = member.checkpoints.restore(trainer.program.abstract, member.checkpoints.best_step())
    if restored is None:
        raise RunError(f"{member.checkpoints.folder}: the checkpoints are gone")
    made = jax.device_get(describe(restored[0].params))
    arrays = {f"{block}/{name}": array for block, out in made.items() for name, array in out.items()}
    judged_by = member.data.validation_source
    if isinstance(judged_by, GridImages) and judged_by.images.are_pictures:
        arrays["image"] = judged_by.pixels(np.arange(1))[0]
    return arrays


def _finish(
    trainer: Trainer, member: Member, arrays: dict[str, Any], config: ConfigDict, workdir: pathlib.Path
) -> None:
    """Writes `positions.npz` and `summary.json`, draws the pictures, and prints the results."""
    epochs: dict[int, dict[str, Any]] = {}
    rows = read_metrics(workdir / "metrics.jsonl")
    for row in rows:
        if row["split"] == "validation":
            epochs.setdefault(row["step"], {"step": row["step"], "epoch": row["epoch"]})[row["name"]] = row["value"]
    score = trainer.task.score
    best = max(epochs.values(), key=lambda figures_: (figures_[score], -figures_["step"]))

    write_atomically(workdir / "positions.npz", lambda file: np.savez(file, **arrays))

    attentions = [block.attention for block in getattr(trainer.task, "blocks", ())]
    span = next(filter(None, (getattr(each, "span", None) for each in attentions)), None)
    initial = [_initial_sigma(trainer.task, each) for each in attentions]
    summary = {
        "best": best,
        "final": epochs[max(epochs)],
        "num_parameters": sum(array.size for array in jax.tree.leaves(trainer.program.abstract.params)),
        "grid_shape": list(trainer.task.grid_shape),
        **{name: _shares(rows, best["step"], name) for name in ("pair_share", "score_share")},
        "initial_pair_share": _initial_shares(trainer.task, initial),
        "initial_sigma": next((sigma.tolist() for sigma in initial if sigma is not None), None),
        "threshold": span and span.threshold,
        "span_mode": span and span.mode,
        "seconds": member.seconds,
        "peak_memory_bytes": _peak_memory_bytes(),
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "versions": {package: metadata.version(package) for package in PACKAGES},
        "git_commit": _git_commit(),
        "data_sha256": checksums.of_run(workdir),
    }
    if isinstance(trainer.task, SentencePrediction):
        trained_on: Any = member.data.train_source
        judged_by: Any = member.data.validation_source
        summary["always_the_same"] = trainer.task.always_the_same(
            trained_on.targets, judged_by.targets, judged_by.groups
        )
    if (workdir / tokenizer.HASH_FILE).exists():
        summary["tokenizer_sha256"] = tokenizer.of_run(workdir).sha256
    with doing("measuring the speed with and without the learned spans"):
        saved = span_saving.measure(config, trainer.states[trainer.members.index(member)], member.data.train_source)
    if saved is not None:
        summary["span_saving"] = saved
    write_json(workdir / "summary.json", summary)
    from posattn_jax.analysis import figures  # imported late: it takes a second, which would delay the first update

    with doing("drawing pictures"):
        drawn = figures.draw_run(workdir)
    print(f"{member.name}best validation {score} {best[score]:.4f} at epoch {best['epoch']:g} of {trainer.epoch:g}")
    for line in what_spans_saved(summary):
        print(f"{member.name}{line}")
    print(f"run folder {workdir}")
    pictures = f"pictures in figures/: {', '.join(path.name for path in drawn)}"
    print(textwrap.fill(pictures, WIDTH, subsequent_indent="  "))


def _shares(rows: Sequence[dict[str, Any]], step: int, name: str) -> dict[str, float]:
    """The share `name` after `step` for each block with a span, averaged over its heads: see `BlockTask.spans`."""
    shares: dict[str, list[float]] = {}
    for row in rows:
        if row["step"] == step and row["split"] == "span" and f"/{name}_" in row["name"]:
            shares.setdefault(row["name"].split("/")[0], []).append(row["value"])
    return {block: float(np.mean(values)) for block, values in shares.items()}


def _initial_sigma(task: Task, attention: Any) -> np.ndarray | None:
    """The standard deviations [p] of a layer's learned span before the first update; None without one."""
    if not isinstance(span := getattr(attention, "span", None), LEARNED):
        return None
    grid_shape, heads = task.grid_shape, attention.num_heads
    tokens = Tokens(jnp.zeros((1, math.prod(grid_shape), heads)), grid_shape, heads)
    extent, _ = span.init_with_output(jax.random.key(0), tokens)  # constants, for every head the same
    return np.asarray(deviations(extent.sigma)).reshape(-1, len(grid_shape))[0]


def _initial_shares(task: Task, initial: Sequence[np.ndarray | None]) -> dict[str, float]:
    """For each block with a learned span, the share of all pairs that was inside it before the first update."""
    given = {f"block_{i}": {} if sigma is None else {"sigma": sigma} for i, sigma in enumerate(initial)}
    return {block: float(np.mean(span["pair_share"])) for block, span in task.spans(given).items()}


def _peak_memory_bytes() -> dict[str, int]:
    """The peak memory of this process: on the host and, if the device reports it, on its first device."""
    peak = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    statistics = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in statistics:
        peak["device"] = statistics["peak_bytes_in_use"]
    return peak


def _git_commit() -> str | None:
    """The commit of the source, if it is a git checkout."""
    command = ["git", "-C", str(pathlib.Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # a machine without git
        return None
    return result.stdout.strip() if result.returncode == 0 else None
