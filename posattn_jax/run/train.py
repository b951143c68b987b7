"""Trains a run in its folder, or several runs that differ only in the seed. A stopped run is resumed."""

import contextlib
import pathlib
from collections.abc import Sequence

import jax
from ml_collections import ConfigDict

from posattn_jax.config import experiment
from posattn_jax.config.names import short
from posattn_jax.config.start import beginning
from posattn_jax.data.pipeline import checksums
from posattn_jax.data.pipeline.batches import Ordered, Saved
from posattn_jax.run import summary
from posattn_jax.run.folder import alone_in, check_config
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import checkpoint_steps, write_json
from posattn_jax.system.processes import first_goes_ahead, is_first
from posattn_jax.train.interruption import answered_if_late
from posattn_jax.train.loop import Trainer
from posattn_jax.train.program import Program
from posattn_jax.train.seed_map import SeedData
from posattn_jax.train.writers import WandbWriter


def check_vmapped(config: ConfigDict) -> None:
    """Raises InputError for a config whose seeds cannot be vmapped."""
    only = "seeds are vmapped only with"
    if not experiment.task_class(config).can_vmap_seeds:
        raise InputError(f"task {short(config.task.kind)}: {only} Classification and Reconstruction")
    if config.mesh.grid != 1:
        raise InputError(f"mesh.grid={config.mesh.grid}: {only} mesh.grid=1")
    if jax.process_count() > 1:
        raise InputError(f"{only} one process, not {jax.process_count()}")


@answered_if_late()
def train(
    config: ConfigDict, folder: pathlib.Path, wandb_project: str | None = None, seeds: Sequence[int] | None = None
) -> None:
    """Trains or resumes a run. At the end, writes the summary and draws the pictures.

    Args:
      config: the config of the run.
      folder: the folder of the run.
      wandb_project: the Weights & Biases project to which the metrics are logged too.
      seeds: replaces the seed of the config. Each seed is a run in FOLDER/SEED, and all are vmapped, see
        `train.seed_map`. Runs that are behind catch up first.
    """
    configs, workdirs = ([config], [folder]) if seeds is None else _of_seeds(config, folder, seeds)
    for each, workdir in zip(configs, workdirs, strict=True):
        check_config(each, workdir)
    config = configs[0]
    experiment.keep_programs(config.cache_dir)
    files = experiment.data_set(config).files()
    for workdir in workdirs:
        checksums.check(files, workdir)
    with first_goes_ahead("data"), doing("reading the data"):
        pairs = zip(configs, workdirs, strict=True)
        sources = [experiment.load_sources(each, workdir=workdir) for each, workdir in pairs]
    task, optimizer, mesh, settings = experiment.prepare(config, sources[0]["train"], num_seeds=len(configs))
    data = [SeedData(each.seed, own["train"], own["validation"]) for each, own in zip(configs, sources, strict=True)]
    steps = [max(checkpoint_steps(workdir), default=0) for workdir in workdirs]
    starts = [
        None if step else beginning(each, task, own["train"])
        for step, each, own in zip(steps, configs, sources, strict=True)
    ]
    stages = _stages(steps, settings.total_steps)
    program = Program(task, optimizer, [data[i] for i in stages[0][0]], mesh, settings)
    if isinstance(sources[0]["train"], Ordered):
        print(f"train: {sources[0]['train'].about(settings.batch_size, settings.accumulation_steps, config.seed)}")
    else:
        counts = ", ".join(f"{name} {len(source):,}" for name, source in sources[0].items())
        print(f"examples: {counts}; grid {' x '.join(map(str, task.grid_shape))}")
    with contextlib.ExitStack() as stack:
        for each, own, workdir in zip(configs, sources, workdirs, strict=True) if is_first() else ():
            stack.enter_context(alone_in(workdir))
            check_config(each, workdir)  # again: another process may have trained there since
            if not (workdir / "config.json").exists():
                write_json(workdir / "config.json", each.to_dict())
            checksums.save(files, workdir)
            if isinstance(own["train"], Saved):
                own["train"].save(workdir)
        writers = []
        if wandb_project is not None and is_first():
            writers.append(WandbWriter(folder, wandb_project, config.to_dict()))
        for stage, (chosen, until) in enumerate(stages):
            if stage > 0:
                program = Program(task, optimizer, [data[i] for i in chosen], mesh, settings)
            trainer = Trainer(program, [workdirs[i] for i in chosen], [starts[i] for i in chosen], writers)
            if is_first() and trainer.step:
                where = f"update {trainer.step:,}, epoch {trainer.step / program.steps_per_epoch:.4g}"
                is_finished = trainer.step >= settings.total_steps
                print(f"is finished: {where}; its summary is made again" if is_finished else f"goes on from {where}")
            for i in chosen if is_first() else ():
                (workdirs[i] / "summary.json").unlink(missing_ok=True)  # it exists only while the run is finished
                write_json(workdirs[i] / "config.json", configs[i].to_dict())  # what may change, now that it goes on
            try:
                trainer.run(until)
                if until is None:
                    summary.write(trainer, configs, workdirs)
            finally:
                trainer.close()


def _of_seeds(
    config: ConfigDict, folder: pathlib.Path, seeds: Sequence[int]
) -> tuple[list[ConfigDict], list[pathlib.Path]]:
    """The config and the folder of each seed."""
    check_vmapped(config)
    configs = [config.copy_and_resolve_references() for _ in seeds]
    for each, seed in zip(configs, seeds, strict=True):
        each.seed = seed
    return configs, [folder / str(seed) for seed in seeds]


def _stages(steps: Sequence[int], total_steps: int) -> list[tuple[list[int], int | None]]:
    """The stages of catching up: which runs to vmap, up to which step. The last stage trains all to the end."""
    levels = sorted(set(steps))
    ends = [*(min(level, total_steps) for level in levels[1:]), None]
    return [
        ([i for i, step in enumerate(steps) if step <= level], end) for level, end in zip(levels, ends, strict=True)
    ]
