"""`--mode=sweep` and `--mode=report` as a user types them, and the jobs that are made of a config file."""

import functools
import json
import re

import pytest

from configs import digits
from configs.lib import common
from configs.lib.common import SPAN
from configs.studies import question_grid
from posattn_jax import GaussianSpan, GeluGate
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment, load_plan, read_plan, write_plan
from posattn_jax.config.parts import change, part
from posattn_jax.sweeps import command, prepare
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from tests.support.command import run_forked

FILE = "configs/digits.py:tiny"


def make_jobs(folder, plan=None, changed=None, config_file=FILE, config=None, **more):
    plan = plan or common.span_paper_sweep().select(["siren_2d", "span_2d"], [5, 6])
    config = config or digits.get_config("tiny")
    change(config, changed or {})
    reserved = {name for treatment in common.span_paper_sweep().treatments for name in treatment.fields}
    return prepare.make_jobs(plan, config, config_file, changed or {}, folder, reserved, **more)


def test_jobs_of_a_plan(tmp_path):
    jobs = make_jobs(tmp_path, changed={"train.log_steps": 7})
    assert [job.name for job in jobs] == ["siren_2d/5", "span_2d/5", "siren_2d/6", "span_2d/6"]
    (arguments,) = jobs[0].commands
    assert arguments[2:4] == ("posattn_jax.main", f"--config={FILE}")
    assert set(arguments[4:]) == {
        f"--workdir={tmp_path / 'siren_2d' / '5'}",
        "--config.train.log_steps=7",
        "--treatment=siren_2d",
        "--config.seed=5",
    }
    assert (jobs[0].total_steps, jobs[0].total_epochs) == (2, 0.0)
    assert len({job.log for job in jobs}) == 4


def test_every_command_trusts_the_modules(tmp_path):
    plan = question_grid.sweep("tiny").select(["siren"], [1])
    (job,) = make_jobs(tmp_path, plan, config=digits.get_config("tiny"), modules=["mine.layers", "mine.data"])
    assert all("--modules=mine.layers,mine.data" in command for command in (*job.commands, job.command_of_seeds))
    assert len(job.commands) == 2


def test_jobs_with_an_evaluation(tmp_path):
    plan = question_grid.sweep("tiny").select(["siren"], [1])
    assert plan.evaluate == {"data.pool": 8}
    config = digits.get_config("tiny")
    (job,) = make_jobs(tmp_path, plan, config=config, options=["--wandb=grids"])
    (*training, logging), evaluation = job.commands
    assert logging == "--wandb=grids"
    assert evaluation == (*training, "--mode=evaluate", "--config.data.pool=8")


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"seed": 3}, "--config.seed: "),
        ({f"{SPAN}.threshold": 0.2}, f"--config.{SPAN}.threshold: "),
        ({"data.layout": "1d"}, "--config.data.layout: expected no value"),  # of treatments that are not chosen
        ({"data.name": "cifar10", "data.dir": "/nowhere"}, "/nowhere"),
    ],
    ids=str,
)
def test_jobs_that_cannot_be(tmp_path, changed, message):
    with pytest.raises(InputError, match=message):
        make_jobs(tmp_path, changed=changed)


def test_treatments_with_unknown_fields_and_folders_of_other_runs_are_named(tmp_path):
    plan = Plan("?", (Treatment("wide", "wide", {"model.widht": 9}),), seeds=(1,))
    with pytest.raises(InputError, match=r'treatment "wide": .*widht'):
        make_jobs(tmp_path, plan)
    (tmp_path / "span_2d" / "6").mkdir(parents=True)
    config = digits.get_config("tiny").to_dict()
    config["seed"], config["model"]["width"] = 6, 99
    (tmp_path / "span_2d" / "6" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="span_2d/6 .*model.width was 99 .* 8"):
        make_jobs(tmp_path)


def test_a_sweep_is_checked_without_its_data(tmp_path):
    arguments = ["--mode=sweep", f"--workdir={tmp_path / 'sweep'}", "--config.data.dir=nowhere", "--check"]
    code, out, err = run_forked(*arguments, "--seeds=1,2", "--treatments=learned", config="configs/char_lm.py")
    assert (code, out.splitlines()[-1]) == (0, "2 runs can start"), err
    code, _, err = run_forked(*arguments, "--vmap_seeds=5", config="configs/char_lm.py")
    assert (code, "seeds are vmapped only with Classification" in err) == (2, True), err
    assert not (tmp_path / "sweep").exists()


def test_a_plan_is_told_before_its_runs(tmp_path):
    treatments = (
        Treatment("none", "no span", {SPAN: None, "train.log_steps": 3}, num_seeds=1),
        Treatment("wide", "a wide span", {SPAN: part(GaussianSpan, initial_sigma=0.5)}),
        Treatment("same", "as it is"),
    )
    hypotheses = (Hypothesis("a wide span is more accurate", "wide", "none", "greater"),)
    plan = Plan("Does it pay?", treatments, hypotheses, seeds=(1, 2))
    lines = prepare.about(plan, make_jobs(tmp_path, plan))
    assert lines == [
        "Does it pay?",
        "",
        "treatments, their runs, and what they change:",
        f"  none  1  no span: {SPAN}=None  train.log_steps=3",
        f"  wide  2  a wide span: {SPAN}=GaussianSpan",
        "  same  2  as it is: nothing",
        "",
        "hypotheses between them: 1",
        "  a wide span is more accurate (greater: wide, none)",
    ]
    alone = plan.select(["same"], [2])
    assert prepare.about(alone, make_jobs(tmp_path, alone))[3:] == [
        "  same  1  as it is: nothing",
        "",
        "hypotheses between them: none",
    ]


def test_a_config_without_a_sweep_is_named():
    with pytest.raises(InputError, match=r"configs/fashion_mnist.py: .*sweep\(\)"):
        load_plan("configs/fashion_mnist.py:quick")
    assert load_plan("configs/studies/question_grid.py:quick").evaluate == {"data.pool": 4}


def test_only_table_5_has_more_seeds_than_the_paper():
    """With the paper's seeds no treatment has a limit, so `--seeds` may name others, and more of them."""
    plan = load_plan("configs/cifar2d_span.py:quick")
    assert [len(plan.seeds_of(each)) for each in plan.treatments] == [12, 12, 5, 5, 5, 5, 5]
    others = load_plan("configs/cifar2d_span.py").select(None, list(range(7)))
    assert all(others.seeds_of(each) == others.seeds for each in others.treatments)


def test_a_part_of_a_sweep_adds_to_earlier_parts(tmp_path):
    plan = common.span_paper_sweep()
    write_plan(tmp_path / "sweep.json", plan.select(None, [1]), {"commands": ["first"]})
    whole, commands = command._with_earlier(plan.select(None, [2]), tmp_path)
    assert (whole.treatments, whole.hypotheses) == (plan.treatments, plan.hypotheses)
    assert whole.seeds == (1, 2) and commands == ["first"]
    with pytest.raises(InputError, match="has another sweep"):
        command._with_earlier(Plan("Another question?", (Treatment("a", "a"),)), tmp_path)


@pytest.mark.parametrize(
    "function, values, message",
    [
        (functools.partial(command_line.numbers, "--seeds"), ["1", "two"], "--seeds=1,two"),
        (functools.partial(command_line.numbers, "--seeds"), ["1", "1"], "--seeds=1,1"),
        (command._pairs, ["partition"], "--slurm=partition"),
        (command._pairs, ["=gpu"], "--slurm==gpu"),
    ],
)
def test_lists_that_mean_nothing(function, values, message):
    with pytest.raises(InputError, match=message):
        function(values)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--workers=2"], "--workers is for --mode=sweep"),
        (["--mode=sweep", "--treatments=span_3d"], "--treatments=span_3d: "),
        (["--vmap_seeds=2"], "--vmap_seeds is for --mode=sweep"),
        (["--mode=evaluate", "--seeds=1"], "--seeds is for --mode=train and sweep"),
        (
            ["--seeds=1,2", "--config.seed=3"],
            "--config.seed: ",
        ),
        (
            ["--seeds=1,2", "--config.task.kind=posattn_jax.tasks.masked_lm:MaskedLanguageModelling"],
            "task MaskedLanguageModelling",
        ),
        (["--mode=sweep", "--vmap_seeds=2", "--config.mesh.grid=2"], "mesh.grid=2: seeds are vmapped"),
        (["--mode=report"], "--config: expected none"),
        (["--mode=report", None], "no runs there"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_flags_are_one_line(tmp_path, arguments, message):
    config = None if None in arguments else FILE
    code, _, err = run_forked(f"--workdir={tmp_path / 'sweep'}", *filter(None, arguments), config=config)
    assert code == 2 and message in err and len(err.splitlines()) == 1


@pytest.mark.slow
def test_a_sweep_and_its_report(tmp_path):
    """Two short runs, the report, and the same command again."""
    arguments = (
        "--mode=sweep",
        f"--workdir={tmp_path}",
        "--treatments=gaussian_2d,span_2d",
        "--seeds=3",
        "--workers=1",
    )
    code, out, err = run_forked(*arguments)
    assert code == 0, err
    assert "span_2d/3: done" in err and "2 runs" in out
    plan, how = read_plan(tmp_path / "sweep.json")
    assert plan.seeds == (3,) and "--mode=sweep" in how["commands"][0]
    assert plan == common.span_paper_sweep().select(None, [3])  # all that the config states, not what was chosen
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    assert [each["treatment"] for each in results["runs"]] == ["gaussian_2d", "span_2d"]
    for each in results["runs"]:
        summary = json.loads((tmp_path / each["treatment"] / "3" / "summary.json").read_text())
        assert each["response"] == summary["best"]["accuracy"]
    text = (tmp_path / "report" / "report.md").read_text()
    assert "--treatment=gaussian_2d" in text
    untested = "".join(line for line in text.splitlines() if line.startswith("- **Cannot be tested"))
    assert all(each.claim in untested for each in plan.hypotheses)
    assert re.search(r"^- .*siren_1d, gaussian_1d.*: not started$", text, re.M)
    written = (tmp_path / "span_2d" / "3" / "summary.json").stat().st_mtime
    code, _, err = run_forked(*arguments)
    assert code == 0, err
    assert (tmp_path / "span_2d" / "3" / "summary.json").stat().st_mtime == written


def test_fewer_seeds_for_some_treatments(tmp_path):
    """The first of the sweep's; and each job knows which epoch is judged."""
    plan = Plan(
        "Is it deep?",
        (Treatment("a", "a"), Treatment("b", "b", {"model.num_blocks": 2}, num_seeds=1)),
        seeds=(5, 3),
        epoch="last",
    )
    jobs = make_jobs(tmp_path, plan)
    assert [job.name for job in jobs] == ["a/5", "b/5", "a/3"]
    jobs[0].workdir.mkdir(parents=True)
    figures = {"step": 1, "epoch": 1.0, "loss": 1.0}
    summary = {"best": figures | {"accuracy": 0.9}, "final": figures | {"accuracy": 0.8}}
    (jobs[0].workdir / "summary.json").write_text(json.dumps(summary))
    assert [job.score for job in jobs] == [0.8, None, None]


def test_a_sweep_without_a_part_goes_on(tmp_path):
    """--config....kind=none of a sweep: its run folders have None there, and belong to it."""
    path = "model.block.attention.gate"
    config = change(digits.get_config("tiny"), {path: part(GeluGate)})
    config.model.block.attention.gate.kind = "none"
    plan = Plan("?", (Treatment("one", "one"),), seeds=(1,))
    folder = tmp_path / "one" / "1"
    folder.mkdir(parents=True)
    saved = change(digits.get_config("tiny"), {path: None, "seed": 1})
    (folder / "config.json").write_text(json.dumps(saved.to_dict()))
    assert [job.name for job in make_jobs(tmp_path, plan, config=config)] == ["one/1"]


def test_a_treatment_of_its_own():
    """--treatment=NAME: a config with the fields of one treatment."""
    config = digits.get_config("tiny")
    prepare.treat(config, FILE, ["train.log_steps"], "gaussian_2d")
    assert config == change(digits.get_config("tiny"), {f"{SPAN}.threshold": 0.0})
    with pytest.raises(InputError, match="^--treatment=gausian: .*gaussian_1d"):
        prepare.treat(config, FILE, [], "gausian")
    with pytest.raises(InputError, match=f"^--config.{SPAN}.mode: expected no value"):
        prepare.treat(config, FILE, [f"{SPAN}.mode"], "siren_2d")
