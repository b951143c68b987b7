"""The life of a run folder: claimed by a config, trained in, evaluated, summed up and drawn."""

import contextlib
import fcntl
import json
import pathlib
import resource
import subprocess
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from posattn_jax import experiment, translating
from posattn_jax.data import glue, remembered, tokenizer
from posattn_jax.data.batches import Kept
from posattn_jax.data.images import GridImages
from posattn_jax.data_files import data_files
from posattn_jax.errors import InputError, RunError
from posattn_jax.files import flatten, read_metrics, write_atomically, write_json
from posattn_jax.processes import first_goes_ahead, is_first
from posattn_jax.tasks.sentence_prediction import SentencePrediction
from posattn_jax.tasks.translation import Translation
from posattn_jax.train import compiled
from posattn_jax.train.bounds import SpanBounds
from posattn_jax.train.checkpoint import Checkpoints
from posattn_jax.train.evaluator import Evaluator, predictions
from posattn_jax.train.loop import Trainer, abstract_state
from posattn_jax.train.sharding import make_mesh
from posattn_jax.train.wandb_writer import WandbWriter

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
# Fields that may change while a run goes on: where the data and the run it began from lie, which devices are there; ...
MAY_CHANGE = ("data.dir", "data.cache_dir", "data.download", "model.pretrained")
MAY_CHANGE += ("mesh.data", "mesh.fsdp", "mesh.model", "mesh.grid", "model.span.bounded")
# ... its length, where the learning rate does not depend on it; ...
MAY_GROW = ("train.total_epochs", "train.total_steps")
ENDLESS = ("constant", "inverse_sqrt")
# ... and for an evaluation also the grid that the data lies on, and the layout of attention.
MAY_DIFFER = ("data.pool", "data.validation_limit", "data.test_part", "train.eval_batch_size", "model.implementation")
MAY_DIFFER += ("decode.beam_size", "decode.batch_size", "decode.extra_length")


def train(config: ConfigDict, workdir: pathlib.Path, wandb_project: str | None = None) -> None:
    """Trains, or continues; at the end writes the summary and draws the pictures.

    With a `wandb_project` the metrics are logged there too.
    """
    check_config(config, workdir)
    compiled.keep(pathlib.Path(config.data.cache_dir) / "compiled")
    remembered.check(data_files(config), workdir)
    with first_goes_ahead("data"):
        sources = experiment.load_sources(config, workdir=workdir)
    per_epoch = experiment.steps_per_epoch(config, sources["train"])
    settings = experiment.make_settings(config, per_epoch)
    optimizer = experiment.make_optimizer(config, settings, per_epoch)
    task = experiment.make_task(config, sources["train"])
    mesh = make_mesh(**config.mesh)
    trainer = Trainer(task, optimizer, sources["train"], sources["validation"], mesh, settings)
    has_begun = any(path.name.isdigit() for path in workdir.glob("checkpoints/*"))
    pretrained = None if has_begun else experiment.pretrained(config, task)
    with _alone_in(workdir) if is_first() else contextlib.nullcontext():
        if is_first():
            write_json(workdir / "config.json", config.to_dict())
            remembered.keep(data_files(config), workdir)
            if isinstance(sources["train"], Kept):
                sources["train"].keep(workdir)
        logs = wandb_project is not None and is_first()
        writers = [WandbWriter(workdir, wandb_project, config.to_dict())] if logs else []
        trainer.open(workdir, pretrained, writers)
        if is_first():
            (workdir / "summary.json").unlink(missing_ok=True)  # there while a run is finished: this one may go on
        try:
            trainer.run()
            arrays = _positions(trainer)
            if is_first():
                _finish(trainer, arrays, config, workdir)
        finally:
            trainer.close()


def check_config(config: ConfigDict, workdir: pathlib.Path) -> None:
    """InputError where the folder holds something else than a run that this config continues."""
    saved = _read_config(workdir)
    if saved is not None:
        _compare(config, saved, workdir, MAY_CHANGE + (MAY_GROW if config.optimizer.schedule in ENDLESS else ()))


def evaluate(config: ConfigDict, workdir: pathlib.Path) -> None:
    """Evaluates a run's best epoch, or what translates; its data may lie on another grid than it was trained on."""
    saved = _read_config(workdir)
    if saved is None:
        raise InputError(f"--workdir={workdir}: no run there (it has no config.json)")
    _compare(config, saved, workdir, MAY_CHANGE + MAY_GROW + MAY_DIFFER)
    if config.task == "translation" and jax.process_count() > 1:
        raise InputError(
            f"--mode=evaluate: a translation is evaluated by one process, and here are {jax.process_count()}"
        )
    compiled.keep(pathlib.Path(config.data.cache_dir) / "compiled")
    remembered.check(data_files(config), workdir, evaluates=True)
    with first_goes_ahead("data"):
        sources = experiment.load_sources(config, test=True, workdir=workdir)
    task = experiment.make_task(config, sources["train"], ConfigDict(saved))
    per_epoch = experiment.steps_per_epoch(config, sources["train"])
    optimizer = experiment.make_optimizer(config, experiment.make_settings(config, per_epoch), per_epoch)
    mesh = make_mesh(**config.mesh)
    checkpoints = Checkpoints(workdir, read_only=True)
    restored = checkpoints.restore(abstract_state(task, optimizer, config.seed, mesh), checkpoints.best_step())
    checkpoints.close()
    if restored is None:
        raise InputError(f"--workdir={workdir}: the run has no checkpoint yet")
    state, _ = restored
    if experiment.bounded_spans(config):
        task = task.within(SpanBounds(task, state.params).value)
    evaluator = Evaluator(task, mesh, config.train.eval_batch_size)
    results: dict[str, Any] = {"step": int(state.step), "grid_shape": list(task.grid_shape), "config": config.to_dict()}
    translator = translating.of_run(workdir, config)[0] if isinstance(task, Translation) else None
    params = state.params if translator is None else translator.params  # the average of several
    for name in ("validation", "test"):
        if name in sources:
            results[name] = evaluator(params, sources[name])
            figures_of = "  ".join(f"{metric} {value:.4f}" for metric, value in results[name].items())
            print(f"{name}: {figures_of}  ({len(sources[name])} examples, grid {task.grid_shape})")
    if translator is not None:
        for name, scores in translating.evaluate(translator, config, workdir, sources).items():
            results[name] |= scores
    if "unlabelled" in sources:
        told = predictions(task, mesh, config.train.eval_batch_size, state.params, sources["unlabelled"])
        groups = sources["unlabelled"].groups
        if is_first():
            written = glue.write_answers(config.data.name, told, groups, workdir / "answers")
            print(f"answers to the test set: {', '.join(map(str, written))}")
    if is_first():
        write_json(workdir / "evaluation.json", results)


def _positions(trainer: Trainer) -> dict[str, np.ndarray]:
    """What the best epoch knows of positions, and an image to draw it on."""
    restored = trainer.checkpoints.restore(trainer.abstract, trainer.checkpoints.best_step())
    if restored is None:
        raise RunError(f"{trainer.checkpoints.folder}: the checkpoints are gone")
    describe = jax.jit(trainer.task.describe, out_shardings=NamedSharding(trainer.mesh, PartitionSpec()))
    made = jax.device_get(describe(restored[0].params))
    arrays = {f"{block}/{name}": array for block, out in made.items() for name, array in out.items()}
    if isinstance(trainer.validation_source, GridImages):
        image = trainer.validation_source.pixels(np.arange(1))[0]
        if image.ndim == 3:  # no clip
            arrays["image"] = image
    return arrays


def _finish(trainer: Trainer, arrays: dict[str, np.ndarray], config: ConfigDict, workdir: pathlib.Path) -> None:
    """Writes `positions.npz` and `summary.json`, draws the pictures, and tells."""
    epochs: dict[int, dict[str, Any]] = {}
    for row in read_metrics(workdir / "metrics.jsonl"):
        if row["split"] == "validation":
            epochs.setdefault(row["step"], {"step": row["step"], "epoch": row["epoch"]})[row["name"]] = row["value"]
    score = trainer.task.score
    best = max(epochs.values(), key=lambda figures_: (figures_[score], -figures_["step"]))

    write_atomically(workdir / "positions.npz", lambda file: np.savez(file, **arrays))

    summary = {
        "best": best,
        "final": epochs[max(epochs)],
        "num_parameters": trainer.num_parameters,
        "grid_shape": list(trainer.task.grid_shape),
        "score_share": _score_shares(workdir, best["step"]),
        "threshold": config.model.span.threshold if config.model.span.enabled else None,
        "seconds": trainer.seconds,
        "peak_memory_bytes": _peak_memory_bytes(),
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "versions": {package: metadata.version(package) for package in PACKAGES},
        "git_commit": _git_commit(),
    }
    if isinstance(trainer.task, SentencePrediction):
        trained_on, judged_by = trainer.train_source, trainer.validation_source
        of_one = trainer.task.always_the_same(trained_on.targets, judged_by.targets, judged_by.groups)
        summary["always_the_same"] = of_one
    if (workdir / tokenizer.HASH_FILE).exists():
        summary["tokenizer_sha256"] = tokenizer.of_run(workdir).sha256
    write_json(workdir / "summary.json", summary)
    from posattn_jax.analysis import figures  # a second to import, which the first update does not wait for

    drawn = figures.draw_run(workdir)
    print(f"best validation {score} {best[score]:.4f} at epoch {best['epoch']:g} of {trainer.epoch:g}")
    print(f"run folder {workdir}, pictures {', '.join(path.name for path in drawn)}")


def _score_shares(workdir: pathlib.Path, step: int) -> dict[str, float]:
    """The share of all scores that each block with a span computed after `step`, the mean of its heads."""
    shares: dict[str, list[float]] = {}
    for row in read_metrics(workdir / "metrics.jsonl"):
        if row["step"] == step and row["split"] == "span" and "/score_share_" in row["name"]:
            shares.setdefault(row["name"].split("/")[0], []).append(row["value"])
    return {block: float(np.mean(values)) for block, values in shares.items()}


@contextlib.contextmanager
def _alone_in(workdir: pathlib.Path) -> Iterator[None]:
    """InputError where another process trains in the folder, which is made where it is missing."""
    with contextlib.ExitStack() as stack:
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((workdir / ".lock").open("w"))
        except OSError as error:
            raise InputError(f"--workdir={workdir}: cannot be written to ({error.strerror})") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"--workdir={workdir}: another process is training there") from error
        yield


def _read_config(workdir: pathlib.Path) -> dict[str, Any] | None:
    path = workdir / "config.json"
    if not path.exists():
        visible = workdir.is_dir() and any(not path.name.startswith(".") for path in workdir.iterdir())
        if visible or workdir.is_file():
            raise InputError(f"--workdir={workdir}: is in use by something that is no run (it has no config.json)")
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: cannot be read ({error})") from error


def _compare(config: ConfigDict, saved: dict[str, Any], workdir: pathlib.Path, may_change: tuple[str, ...]) -> None:
    """InputError where the config differs from the run folder's in a field that may not change."""
    now, then = flatten(json.loads(json.dumps(config.to_dict()))), flatten(saved)
    differing = [name for name in sorted(now | then) if now.get(name) != then.get(name) and name not in may_change]
    if differing:
        listed = ", ".join(f"{name} was {then.get(name)!r} and is now {now.get(name)!r}" for name in differing)
        raise InputError(f"--workdir={workdir} belongs to another config: {listed}; choose another folder")


def _peak_memory_bytes() -> dict[str, int]:
    """The most memory that this process held: of the host, and of its first device where that tells."""
    peak = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    statistics = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in statistics:
        peak["device"] = statistics["peak_bytes_in_use"]
    return peak


def _git_commit() -> str | None:
    """The commit of the source, if it is a checkout."""
    command = ["git", "-C", str(pathlib.Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # a machine without git
        return None
    return result.stdout.strip() if result.returncode == 0 else None
