"""The life of a run folder: claimed by a config, trained in, and evaluated."""

import contextlib
import fcntl
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from posattn_jax import experiment, summary, translating
from posattn_jax.data import glue, remembered
from posattn_jax.data.batches import Kept
from posattn_jax.data_files import data_files
from posattn_jax.errors import InputError
from posattn_jax.files import flatten, write_json
from posattn_jax.processes import first_goes_ahead, is_first
from posattn_jax.tasks.translation import Translation
from posattn_jax.train import compiled
from posattn_jax.train.bounds import SpanBounds
from posattn_jax.train.checkpoint import Checkpoints
from posattn_jax.train.evaluator import Evaluator, predictions
from posattn_jax.train.loop import Trainer, abstract_state
from posattn_jax.train.member import Member
from posattn_jax.train.sharding import make_mesh
from posattn_jax.train.wandb_writer import WandbWriter

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
    _train([config], [workdir], wandb_project)


def train_together(config: ConfigDict, folder: pathlib.Path, seeds: Sequence[int]) -> None:
    """As `train`, a run of every seed in FOLDER/SEED, all of them in one program: see `train.together`."""
    check_together(config)
    configs = [config.copy_and_resolve_references() for _ in seeds]
    for each, seed in zip(configs, seeds, strict=True):
        each.seed = seed
    _train(configs, [folder / str(seed) for seed in seeds])


def check_together(config: ConfigDict) -> None:
    """InputError for a config of which seeds cannot be trained together."""
    only = "runs of several seeds are trained together only with"
    if config.task != "classification":
        raise InputError(f'task="{config.task}": {only} task="classification"')
    if config.mesh.grid != 1:
        raise InputError(f"mesh.grid={config.mesh.grid}: {only} mesh.grid=1")
    if config.model.implementation == "fused":
        raise InputError(f'model.implementation="fused": {only} another')
    if jax.process_count() > 1:
        raise InputError(f"{only} one process, and here are {jax.process_count()}")


def _train(configs: Sequence[ConfigDict], workdirs: Sequence[pathlib.Path], wandb_project: str | None = None) -> None:
    """Trains the runs of configs that differ in the seed alone. Those behind catch up with the others first."""
    for each, workdir in zip(configs, workdirs, strict=True):
        check_config(each, workdir)
    config = configs[0]
    compiled.keep(pathlib.Path(config.data.cache_dir) / "compiled")
    for workdir in workdirs:
        remembered.check(data_files(config), workdir)
    with first_goes_ahead("data"):
        pairs = zip(configs, workdirs, strict=True)
        sources = [experiment.load_sources(each, workdir=workdir) for each, workdir in pairs]
    per_epoch = experiment.steps_per_epoch(config, sources[0]["train"])
    task = experiment.make_task(config, sources[0]["train"])
    settings = experiment.make_settings(config, per_epoch, task.grid_shape if len(configs) > 1 else None)
    optimizer = experiment.make_optimizer(config, settings, per_epoch)
    mesh = make_mesh(**config.mesh)
    members = [Member(each.seed, own["train"], own["validation"]) for each, own in zip(configs, sources, strict=True)]
    steps = [_saved_step(workdir) for workdir in workdirs]
    stages = _stages(steps, settings.total_steps)
    trainer = Trainer(task, optimizer, [members[i] for i in stages[0][0]], mesh, settings)
    pretrained = None if any(steps) else experiment.pretrained(config, task)
    with contextlib.ExitStack() as stack:
        for each, own, workdir in zip(configs, sources, workdirs, strict=True) if is_first() else ():
            stack.enter_context(_alone_in(workdir))
            write_json(workdir / "config.json", each.to_dict())
            remembered.keep(data_files(each), workdir)
            if isinstance(own["train"], Kept):
                own["train"].keep(workdir)
        if wandb_project is not None and is_first():
            (member,), (workdir,) = members, workdirs
            member.writers.append(WandbWriter(workdir, wandb_project, config.to_dict()))
        for stage, (chosen, until) in enumerate(stages):
            if stage > 0:
                trainer = Trainer(task, optimizer, [members[i] for i in chosen], mesh, settings)
            trainer.open([workdirs[i] for i in chosen], pretrained)
            for i in chosen if is_first() else ():
                (workdirs[i] / "summary.json").unlink(missing_ok=True)  # there while a run is finished
            try:
                trainer.run(until)
                if until is None:
                    summary.write(trainer, configs, workdirs)
            finally:
                trainer.close()


def _saved_step(workdir: pathlib.Path) -> int:
    """Of the newest checkpoint; 0: none."""
    return max((int(path.name) for path in workdir.glob("checkpoints/*") if path.name.isdigit()), default=0)


def _stages(steps: Sequence[int], total_steps: int) -> list[tuple[list[int], int | None]]:
    """Which runs are trained together one after the other, and up to which step; at the end all, to their end."""
    levels = sorted(set(steps))
    ends = [*(min(level, total_steps) for level in levels[1:]), None]
    return [
        ([i for i, step in enumerate(steps) if step <= level], end) for level, end in zip(levels, ends, strict=True)
    ]


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
