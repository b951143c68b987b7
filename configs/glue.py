"""GLUE's tasks (Chang 2021, Table 5), from a run of masked language modelling, or from one of MNLI.

python -m posattn_jax.main --config=configs/glue.py:cola,bert_tiny,composite --workdir=runs/NAME \
    --config.data.dir=GLUE --config.task.pretrained=runs/PRETRAINED
... --mode=evaluate: answers/CoLA.tsv in the format of GLUE's site
python -m posattn_jax.main --config=configs/glue.py:bert_tiny --mode=sweep --workdir=runs/glue \
    --config.data.dir=GLUE
python -m posattn_jax.sweeps.glue_bundle runs/glue composite: the best runs' answers, one zip for the site
Hardware and time: bert_tiny, one CPU core: CoLA, MRPC and RTE 1 to 2 minutes, SST-2 and STS-B 4. Expected scores of
bert_tiny, composite, in hundredths: CoLA 6, SST-2 79, MRPC 72, STS-B 18, RTE 48; of bert_small and bert_base the
paper's Table 6, not run here.
python -m posattn_jax.main --config=configs/glue.py:rte,from=runs/imported --workdir=runs/NAME --config.data.dir=GLUE
starts from the run in that folder, for example an imported one, and has its model (docs/weights.md).
python -m posattn_jax.main --config=configs/glue.py:from=runs/imported --mode=sweep --workdir=runs/grafts \
    --config.data.dir=GLUE: five tasks, with parts added that do not change its function at first, and without
    positions; glue.py:mrpc,from=runs/imported: only MRPC. With MiniLM (22.7 million parameters), CoLA takes one core
    8 minutes a run; expected: 25 unchanged, 24 to 26 with parts added, 1 to 3 without positions; MRPC 80, and 77
    without positions; RTE 55 to 57; STS-B 84 to 85, and 61 to 85 without positions; SST-2 85 to 87, and 80 to 82
    without (docs/grafts.md)
A variant is a task (cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte or wnli; by default cola), a size (bert_tiny,
bert_small or bert_base; by default bert_small) and a convolution (see configs/bert.py; by default composite), in
any order; or a task and from=RUN; or tiny (tests).
"""

from typing import Any

from ml_collections import ConfigDict

from configs.lib import common, common_bert, common_grafts
from posattn_jax.analysis.plan import PAPER_SEEDS, Hypothesis, Plan, Treatment
from posattn_jax.config.parts import change, part
from posattn_jax.data.text.glue import Glue
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.sentence_prediction import SentencePrediction
from posattn_jax.train.schedule import Linear

TEN_SEEDS = (*PAPER_SEEDS, 1, 2, 3, 4, 5)
TASKS = {
    "mnli": "MNLI",
    "cola": "CoLA",
    "mrpc": "MRPC",
    "qnli": "QNLI",
    "qqp": "QQP",
    "rte": "RTE",
    "sst2": "SST-2",
    "stsb": "STS-B",
    "wnli": "WNLI",
}
LARGE, LONG = ("mnli", "qqp"), ("rte", "stsb")
FROM_MNLI = ("mrpc", "rte", "stsb")


def get_config(variant: str = "") -> ConfigDict:
    words = set(variant.split(",")) - {""}
    start = next((word for word in words if word.startswith("from=")), "")
    is_tiny = "tiny" in words
    size = _take(words, tuple(common_bert.SIZES), "bert_small")
    config = common_bert.get_config(size, "tiny" if is_tiny else "none")
    task = _take(words, tuple(TASKS), "cola")
    if start:
        words, size = words - {start}, "imported"
        config.model = common.of_run(start.removeprefix("from=")).model
    elif not is_tiny:
        name = _take(words, tuple(common_bert.CONVOLUTIONS), "composite")
        common_bert.with_convolution(config, name, size)
    if words - {"tiny"}:
        raise ValueError(f'config variant "{variant}": expected a task, a size and a convolution or from=RUN, or tiny')
    config.data = part(Glue, length=config.data.length)
    config.task = part(SentencePrediction, pretrained=start.removeprefix("from="))
    config.optimizer.update(weight_decay=0.0, schedule=part(Linear))
    change(config, recipe(task, size))
    if is_tiny:
        config.train.update(total_steps=2, batch_size=4)
    return config


def recipe(task: str, size: str) -> dict[str, Any]:
    """The settings of a task: Table 5 of the paper; for bert_tiny with shorter sequences, and one epoch of SST-2.

    Some lines of QQP's official files are broken; the run counts them, and leaves them out.
    An imported model is trained for three epochs, with the highest of the learning rates that Devlin 2019 tries.
    """
    rates = {"bert_base": 1e-4, "imported": 5e-5}
    epochs = 10.0 if task in LONG else 4.0 if task in LARGE else 3.0
    epochs = 3.0 if size == "imported" else epochs
    fields: dict[str, Any] = {
        "data.name": task,
        "train.batch_size": 128 if task in LARGE else 32,
        "optimizer.learning_rate": rates.get(size, 1e-4 if task == "qnli" else 3e-4),
    }
    if task == "qqp":
        fields["data.malformed"] = "skip"
    if size == "bert_tiny":
        fields |= {"data.length": {"cola": 24, "sst2": 32}.get(task, 40), "model.max_length": 40}
        epochs = 1.0 if task == "sst2" else epochs
    return fields | {"train.total_epochs": epochs, "optimizer.schedule.warmup_epochs": epochs / 10}


def _take(words: set[str], known: tuple[str, ...], default: str) -> str:
    """Removes the one known word from the words, and returns it."""
    found = sorted(words & set(known))
    if len(found) > 1:
        raise ValueError(f'config variant "{",".join(found)}": expected one of these')
    words -= set(found)
    return found[0] if found else default


def sweep(variant: str = "") -> Plan:
    """Tasks and convolutions: the paper's Table 6 with ten seeds; for bert_tiny only the small tasks.

    The runs start from those of configs/bert.py:SIZE --mode=sweep --workdir=runs/bert_SIZE. With bert_small and
    bert_base, MRPC, RTE and STS-B start from the runs of MNLI in --workdir=runs/glue. They fail if they come before
    these, and the same command tries them again. With from=RUN, the treatments are parts added to that run's model, on
    the named tasks, or on five.
    """
    words = set(variant.split(",")) - {"", "tiny"}
    if start := next((word for word in words if word.startswith("from=")), ""):
        return _of_grafts(start.removeprefix("from="), words - {start})
    size = _take(words, tuple(common_bert.SIZES), "bert_small")
    if words:
        raise InputError(f'sweep of "{variant}": expected one of {", ".join(common_bert.SIZES)}')
    if size == "bert_tiny":
        names, tasks, seeds = common_bert.FIVE, ("cola", "sst2", "mrpc", "stsb", "rte"), PAPER_SEEDS[:3]
    else:
        names = tuple(common_bert.CONVOLUTIONS) if size == "bert_small" else common_bert.FIVE[1:]
        tasks, seeds = tuple(task for task in TASKS if task != "wnli"), TEN_SEEDS
    first = "{seed}" if size == "bert_tiny" else str(PAPER_SEEDS[0])
    treatments, hypotheses = [], []
    for task in tasks:
        for each in common_bert.treatments(names, size):
            start = f"runs/{size}/{each.name}/{first}"
            if task in FROM_MNLI and size != "bert_tiny":
                start = f"runs/glue/mnli_{each.name}/{{seed}}"
            fields = {"task.pretrained": start} | recipe(task, size) | each.fields
            treatments.append(Treatment(f"{task}_{each.name}", f"{each.label}, {TASKS[task]}", fields))
        for name, control in (("absolute", "none"), ("composite", "absolute")):
            claim = f"{TASKS[task]}: {common_bert.LABELS[name]} is above {common_bert.LABELS[control]}"
            if {name, control} <= set(names):
                hypotheses.append(Hypothesis(claim, f"{task}_{name}", f"{task}_{control}", "greater"))
    return Plan(
        "GLUE: what do convolutions in attention do to the score, and on which task?",
        tuple(treatments),
        tuple(hypotheses),
        seeds=seeds,
        response="score",
        epoch="last",
        axis="data.name",
        source="Chang 2021, Table 6",
    )


def _of_grafts(start: str, names: set[str]) -> Plan:
    """Parts added to an imported model, for two epochs, or a fifth of SST-2's, at lengths that most texts fit.

    They cut 37 % of RTE's, 20 % of MRPC's, 11 % of STS-B's, 5.5 % of SST-2's and 1 % of CoLA's. The learning rate is
    for a small model: one run of CoLA with another seed reached .26 with it. Rates were not compared.
    """
    known = ("cola", "mrpc", "rte", "stsb", "sst2")
    if unknown := names - set(known):
        raise InputError(f'sweep of "{",".join(sorted(unknown))}" with from=RUN: expected none or {", ".join(known)}')
    tasks = {task: TASKS[task] for task in known if task in names or not names}
    lengths = {"cola": 24, "sst2": 32, "stsb": 48}
    recipes: dict[str, dict[str, Any]] = {}
    for task in tasks:
        epochs = 0.2 if task == "sst2" else 2.0
        recipes[task] = recipe(task, "imported") | {
            "train.total_epochs": epochs,
            "optimizer.schedule.warmup_epochs": epochs / 10,
            "optimizer.learning_rate": 1e-4,
            "data.length": lengths.get(task, 64),
        }
    return common_grafts.sweep(start, tasks, recipes, "score", "data.name")
