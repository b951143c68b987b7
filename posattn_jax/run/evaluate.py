"""Evaluates a trained run."""

import pathlib
from typing import Any

import jax
from ml_collections import ConfigDict

from posattn_jax.config import experiment
from posattn_jax.data.pipeline import checksums
from posattn_jax.data.text import glue
from posattn_jax.run.folder import check_evaluation
from posattn_jax.system import extras
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import cache_folder, write_json
from posattn_jax.system.processes import first_goes_ahead, is_first
from posattn_jax.tasks.translation import Translation
from posattn_jax.train.checkpoint import Checkpoints
from posattn_jax.train.evaluator import Evaluator
from posattn_jax.train.program import SpanBounds
from posattn_jax.train.step import abstract_state
from posattn_jax.use import translate


def evaluate(config: ConfigDict, workdir: pathlib.Path) -> None:
    """Evaluates a run's best epoch, also on another grid than that of training. Translation averages checkpoints."""
    saved = check_evaluation(config, workdir)
    if experiment.task_class(config) is Translation:
        extras.need("sacrebleu")
        if jax.process_count() > 1:
            raise InputError(f"--mode=evaluate: expected one process for a translation run, not {jax.process_count()}")
    experiment.keep_programs(cache_folder())
    data: Any = experiment.data_set(config)
    checksums.check(data.files(), workdir, evaluates=True)
    with first_goes_ahead("data"), doing("reading the data"):
        sources = experiment.load_sources(config, test=True, workdir=workdir)
    task, optimizer, mesh, settings = experiment.prepare(config, sources["train"], ConfigDict(saved))
    checkpoints = Checkpoints(workdir, read_only=True)
    restored = checkpoints.restore(abstract_state(task, optimizer, mesh), checkpoints.best_step())
    checkpoints.close()
    if restored is None:
        raise InputError(f"--workdir={workdir}: the run has no checkpoint yet")
    state, _ = restored
    if settings.bounds_spans:
        task = task.within(SpanBounds(task, state.params).value)
    evaluator = Evaluator(task, mesh, settings.eval_batch_size)
    results: dict[str, Any] = {"step": int(state.step), "grid_shape": list(task.grid_shape), "config": config.to_dict()}
    translator = translate.of_run(workdir, config)[0] if isinstance(task, Translation) else None
    params = state.params if translator is None else translator.params  # an average of several checkpoints
    for name in ("validation", "test"):
        if name in sources:
            with doing(f"evaluating {len(sources[name]):,} examples"):
                results[name] = evaluator(params, sources[name])
            figures_of = "  ".join(f"{metric} {value:.4f}" for metric, value in results[name].items())
            print(f"{name}: {figures_of}  ({len(sources[name])} examples, grid {task.grid_shape})")
    if translator is not None:
        for name, scores in translate.evaluate(translator, data, workdir, sources).items():
            results[name] |= scores
    if "unlabelled" in sources:
        predictions = evaluator.predictions(state.params, sources["unlabelled"])
        groups = sources["unlabelled"].groups
        if is_first():
            written = glue.write_answers(data.name, predictions, groups, workdir / "answers")
            print(f"answers to the test set: {', '.join(map(str, written))}")
    if is_first():
        write_json(workdir / "evaluation.json", results)
