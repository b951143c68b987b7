"""The command line as a user meets it."""

import fcntl
import io
import json
import re
import shutil
import sys
import time

import numpy as np
import pytest
from absl import flags

from posattn_jax import main
from posattn_jax.run import summary
from posattn_jax.system import command_line
from posattn_jax.system.files import read_metrics
from tests.support import made_data
from tests.support.command import run, run_forked, start, told
from tests.support.recorded import figures_of


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "digits"
    code, out, err = run(f"--workdir={workdir}")  # in a fresh process, as a user does
    assert code == 0, err
    return workdir, out


def test_train(trained):
    workdir, out = trained
    assert "best validation accuracy" in out
    assert re.search(r"^examples: train [\d,]+, validation [\d,]+.*; grid \d+ x \d+$", out, re.MULTILINE)
    summary = json.loads((workdir / "summary.json").read_text())
    rows = [row for row in read_metrics(workdir / "metrics.jsonl") if row["split"] == "validation"]
    assert summary["best"]["accuracy"] == max(row["value"] for row in rows if row["name"] == "accuracy")
    assert summary["final"]["step"] == 2
    assert summary["peak_memory_bytes"]["host"] > 0
    assert summary["versions"]["jax"]
    figures = {path.name for path in (workdir / "figures").iterdir()}
    expected = {"learning_curves.png", "span_over_epochs.png", "span_on_grid.png", "positional_encodings.png"}
    assert figures == expected
    with np.load(workdir / "positions.npz") as positions:
        assert positions["block_0/relative_encoding"].shape == (7, 7, 2, 4)
    assert list((workdir / "events").glob("events.out.*"))
    assert json.loads((workdir / "config.json").read_text())["model"]["width"] == 8


@pytest.mark.slow
def test_the_same_command_again_changes_nothing(trained):
    workdir, out = trained
    before = (workdir / "metrics.jsonl").read_bytes()
    code, again, _ = run_forked(f"--workdir={workdir}")
    assert code == 0
    told = "is finished: update 2, epoch 0.05714; its summary is made again\n"
    assert again.count(told) == 1 and again.replace(told, "") == out
    assert (workdir / "metrics.jsonl").read_bytes() == before


def test_evaluate_by_the_config_of_the_run(trained, tmp_path):
    """Without --config. Its fields can be set as with a config file."""
    run = shutil.copytree(trained[0], tmp_path / "run")
    options = "--mode=evaluate", f"--workdir={run}", "--config.train.eval_batch_size=120"
    code, out, err = run_forked(*options, config=None)
    assert code == 0, err
    found = json.loads((run / "evaluation.json").read_text())
    assert found["config"]["train"]["eval_batch_size"] == 120 and 0 <= found["validation"]["accuracy"] <= 1
    assert out.startswith("validation: ")


@pytest.mark.parametrize(
    "options, message",
    [
        (["--config.train.epochs=3"], "did you mean --config.train.total_epochs?"),
        (["--config.train.batch_size=3"], "train.batch_size was 20 and is now 3"),
        (["--treatment=siren_2d"], "--config=FILE is missing"),
        (["--workdir=nowhere"], "error: --workdir=nowhere: no run there"),
    ],
)
def test_what_the_config_of_a_run_cannot_be(digits_run, options, message):
    code, out, err = run_forked(f"--workdir={digits_run}", "--mode=evaluate", *options, config=None)
    assert (code, out) == (2, "") and message in err and len(told(err)) == 1, err


@pytest.mark.slow
def test_evaluate_on_a_larger_grid(trained):
    workdir, _ = trained
    code, out, err = run(f"--workdir={workdir}", "--mode=evaluate")
    assert code == 0, err
    same = json.loads((workdir / "evaluation.json").read_text())
    summary = json.loads((workdir / "summary.json").read_text())
    assert same["validation"]["accuracy"] == pytest.approx(summary["best"]["accuracy"])
    assert same["grid_shape"] == [4, 4]
    code, out, err = run(f"--workdir={workdir}", "--mode=evaluate", "--config.data.pool=1")
    assert code == 0, err
    assert "grid (8, 8)" in out
    assert json.loads((workdir / "evaluation.json").read_text())["grid_shape"] == [8, 8]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--config.optimizer.schedule=cosine"], "--config.optimizer.schedule=cosine: "),
        (
            ["--config.data.pol=1"],
            '--config.data.pol=1: no field "pol": did you mean --config.data.pool?',
        ),
        (["--config.train.learning_rate=2"], "did you mean --config.optimizer.learning_rate?"),
        (["--config.seed.x=2"], "--config.seed.x=2"),
        pytest.param(["--config.data.pool=x"], "--config.data.pool=x", marks=pytest.mark.slow),
        (
            ["--config.mesh.data=3"],
            "mesh.data=3, mesh.fsdp=1, mesh.model=1, mesh.grid=1: ",
        ),
        pytest.param(
            ["--config.train.batch_size=900"],
            "train.batch_size x train.accumulation_steps is 1800: ",
            marks=pytest.mark.slow,
        ),
        pytest.param(["--confg=x"], "Unknown command line flag 'confg'", marks=pytest.mark.slow),
        pytest.param(["stray"], 'unexpected argument "stray"', marks=pytest.mark.slow),
        (["--mode=dance"], "--mode=dance"),
        (["--workdir=~/run"], "--workdir=~/run: a shell expands no ~ there"),
        (["--mode=evaluate"], "no run there"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(tmp_path, arguments, message):
    code, out, err = run_forked(f"--workdir={tmp_path / 'run'}", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(told(err)) == 1, err
    assert not (tmp_path / "run").exists(), "nothing is left behind"


@pytest.mark.parametrize(
    "config, message",
    [
        ("configs/digit.py", "--config=configs/digit.py: no such file"),
        ("configs/digits.py:small", 'digits variant "small"'),
        ("configs/glue.py:from=nowhere", "from=nowhere: no run there"),
        ("configs/reconstruction.py:small", 'reconstruction variant "small"'),
        ("configs/cifar2d_span.py:small", 'config variant "small"'),
    ],
)
def test_bad_config_file(tmp_path, config, message):
    code, _, err = run_forked(f"--workdir={tmp_path / 'run'}", config=config)
    assert code == 2
    assert message in err
    assert len(told(err)) == 1, err


def test_missing_workdir():
    """Of the command itself; the others here are forks of a process that has imported the libraries."""
    code, _, err = run()
    assert code == 2
    assert "--workdir=FOLDER is missing" in err


def test_missing_data_is_told_soon(tmp_path):
    started = time.perf_counter()
    code, _, err = run_forked(
        f"--workdir={tmp_path / 'run'}", f"--config.data.dir={tmp_path}", config="configs/cifar2d_span.py"
    )
    assert code == 2
    assert f"CIFAR-10 not found in data.dir={tmp_path}" in err
    assert time.perf_counter() - started < 60, "and not after retries"


def test_a_folder_of_another_config(trained):
    workdir, _ = trained
    code, _, err = run_forked(f"--workdir={workdir}", "--config.seed=3")
    assert code == 2
    assert "seed was 9188 and is now 3" in err


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    code, _, err = run_forked(f"--workdir={tmp_path}")
    assert code == 2
    assert "is in use, but not by a run" in err


@pytest.mark.slow
def test_debug_shows_the_traceback(tmp_path):
    code, _, err = run(f"--workdir={tmp_path / 'run'}", "--debug", "--config.model.block.attention.num_heads=3")
    assert code == 1
    assert "Traceback" in err


@pytest.mark.parametrize(
    "error", [OSError(28, "full"), ValueError("RESOURCE_EXHAUSTED: 000: No space left on device [os_error_code='28']")]
)
def test_a_full_disk_is_one_line(tmp_path, monkeypatch, capsys, error):
    from posattn_jax import main

    def train(config, folder, wandb_project, seeds):
        raise error

    monkeypatch.setattr(main, "_quieten_libraries", lambda: None)

    monkeypatch.setattr("posattn_jax.run.train.train", train)
    monkeypatch.setattr(main, "parse_flags", lambda argv: ["main"])
    monkeypatch.setattr(main, "_config", lambda: None)
    monkeypatch.setattr(main, "_WORKDIR", type("Flag", (), {"value": str(tmp_path)}))
    monkeypatch.setattr(main, "_MODE", type("Flag", (), {"value": "train"}))
    monkeypatch.setattr(main, "_DISTRIBUTED", type("Flag", (), {"value": False}))
    monkeypatch.setattr(main, "_WANDB", type("Flag", (), {"value": None}))
    monkeypatch.setattr(main, "_SEEDS", type("Flag", (), {"value": None}))
    assert main.run(["main", "--workdir=run"]) == 1
    assert f"the disk is full ({tmp_path})" in capsys.readouterr().err


@pytest.mark.slow
def test_a_folder_that_another_process_trains_in(trained):
    workdir, _ = trained
    with (workdir / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, _, err = run_forked(f"--workdir={workdir}")
    assert code == 2
    assert "another process is training there" in err


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_continues(tmp_path):
    arguments = (f"--workdir={tmp_path / 'run'}", "--config.train.total_steps=200")
    process = start(*arguments)
    while not (tmp_path / "run" / "metrics.jsonl").exists() or not (tmp_path / "run" / "metrics.jsonl").read_text():
        time.sleep(0.2)
        assert process.poll() is None, process.stderr.read()
    process.send_signal(2)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "stopped by SIGINT at step" in err.splitlines()[-1]
    code, out, err = run(*arguments)
    assert code == 0, err
    code, whole, _ = run(f"--workdir={tmp_path / 'whole'}", "--config.train.total_steps=200")
    assert "goes on from update" in out and "goes on" not in whole
    best, of_whole = ([line for line in text.splitlines() if line.startswith("best")] for text in (out, whole))
    assert best == of_whole and len(best) == 1
    assert figures_of(tmp_path / "run") == figures_of(tmp_path / "whole")


@pytest.mark.slow
def test_cifar10_from_files_to_pictures(tmp_path):
    """The paper's config, tiny, on made files in the official format."""
    made_data.write_binary(tmp_path / "data")
    arguments = (f"--config.data.dir={tmp_path / 'data'}", "--config.data.validation_limit=100")
    code, out, err = run(f"--workdir={tmp_path / 'run'}", *arguments, config="configs/cifar2d_span.py:tiny")
    assert code == 0, err
    code, out, err = run(
        f"--workdir={tmp_path / 'run'}", *arguments, "--mode=evaluate", config="configs/cifar2d_span.py:tiny"
    )
    assert code == 0, err
    assert "validation: loss" in out
    assert "(10000 examples, grid (4, 4))" in out


@pytest.mark.slow
def test_clips_from_files_to_pictures(tmp_path):
    """A digit that moves, in three dimensions, on made files in MNIST's format."""
    made_data.write_mnist(tmp_path / "data" / "mnist")
    fields = {"dir": tmp_path / "data", "pool": 8, "scene.canvas": 32, "scene.frames": 2}
    arguments = [f"--workdir={tmp_path / 'run'}", *(f"--config.data.{name}={value}" for name, value in fields.items())]
    for mode in ("train", "evaluate"):
        code, out, err = run(*arguments, f"--mode={mode}", config="configs/moving_clips.py:tiny")
        assert code == 0, err
    assert "test: loss" in out and "(50 examples, grid (2, 4, 4))" in out
    with np.load(tmp_path / "run" / "positions.npz") as positions:
        assert positions["block_0/relative_encoding"].shape == (3, 7, 7, 2, 4)
        assert "image" not in positions


@pytest.mark.slow
def test_a_grid_cut_over_devices(tmp_path):
    """Trained on eight devices, each with two rows of half the examples, and evaluated on one; and the same on one."""
    arguments = [
        "--config.data.pool=1",
        "--config.model.block.attention.span.initial_sigma=0.05",
        "--config.train.batch_size=16",
    ]
    scores = []
    for name, num_devices, mesh in (("cut", 8, ("--config.mesh.data=2", "--config.mesh.grid=4")), ("whole", 1, ())):
        folder = f"--workdir={tmp_path / name}"
        for options in ({"num_devices": num_devices}, {}):
            code, _, err = run(folder, *arguments, *(mesh if options else ("--mode=evaluate",)), **options)
            assert code == 0, err
            assert not err or "all-gather" not in err
        scores.append(json.loads((tmp_path / name / "evaluation.json").read_text())["validation"])
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.slow
def test_reconstruction_resumed_evaluated_and_drawn(tmp_path):
    """On offsets: longer in two parts is what it is at once, and an evaluation finds the best epoch's score."""
    config = "configs/reconstruction.py:tiny"
    for folder, steps in (("parts", 4), ("parts", 7), ("whole", 7)):
        code, out, err = run(f"--workdir={tmp_path / folder}", f"--config.train.total_steps={steps}", config=config)
        assert code == 0, err
    assert "best validation explained" in out
    rows = [
        [row for row in read_metrics(tmp_path / name / "metrics.jsonl") if row["split"] == "validation"]
        for name in ("parts", "whole")
    ]
    assert [row for row in rows[0] if row["step"] != 4] == [row for row in rows[1] if row["step"] != 4]
    assert {path.name for path in (tmp_path / "whole" / "figures").iterdir()} == {
        "learning_curves.png",
        "positional_encodings.png",
    }
    with np.load(tmp_path / "whole" / "positions.npz") as positions:
        assert {name: array.shape for name, array in positions.items()} == {"block_0/relative_encoding": (7, 7, 1, 8)}
    code, _, err = run(
        f"--workdir={tmp_path / 'whole'}", "--config.train.total_steps=7", "--mode=evaluate", config=config
    )
    assert code == 0, err
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    evaluation = json.loads((tmp_path / "whole" / "evaluation.json").read_text())
    assert evaluation["validation"]["explained"] == pytest.approx(summary["best"]["explained"])
    assert evaluation["grid_shape"] == summary["grid_shape"] == [4, 4]
    code, _, err = run(f"--workdir={tmp_path / 'whole'}", "--config.data.grid_shape=(5, 5)", config=config)
    assert code == 2
    assert "data.grid_shape was [4, 4] and is now [5, 5]" in err


@pytest.mark.slow
def test_bad_grid_is_one_line(tmp_path):
    code, _, err = run(
        f"--workdir={tmp_path / 'run'}", "--config.data.grid_shape=(4, 0)", config="configs/reconstruction.py:tiny"
    )
    assert code == 2
    assert "data.grid_shape=(4, 0): " in err
    assert len(told(err)) == 1, err


@pytest.mark.slow
def test_points_from_files_to_evaluation(tmp_path):
    """The ink of digits as points, through general Translution, on made files in MNIST's format."""
    made_data.write_mnist(tmp_path / "data" / "mnist")
    arguments = [
        f"--workdir={tmp_path / 'run'}",
        f"--config.data.dir={tmp_path / 'data'}",
        "--config.data.num_points=9",
    ]
    for mode in ("train", "evaluate"):
        code, out, err = run(*arguments, f"--mode={mode}", config="configs/translution.py:points,tiny")
        assert code == 0, err
    assert "validation: loss" in out and "grid (9,)" in out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["grid_shape"] == [9]


def test_a_summary_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert summary._git_commit() is None


@pytest.mark.parametrize(
    "options, message",
    [
        (["--config.train.total_epochs=2"], "--config.train.total_epochs=2"),
        (["--mode=predict", "--config.data.pool=2"], "--config.data.pool=2"),
        (["--mode=configs", "--config.seed=2"], "--config.seed=2"),
    ],
)
def test_a_field_without_its_config(options, message):
    code, out, err = run_forked("--workdir=run", *options, config=None)
    assert (code, out) == (2, "") and message in err and len(told(err)) == 1, err


def test_the_configs_of_the_package():
    found = command_line.shipped_configs()
    assert "configs/digits.py" in found and "configs/lib/common.py" not in found and all(found.values())
    code, out, err = run_forked("--mode=configs", config=None)
    assert (code, err) == (0, "") and len(out.splitlines()) == len(found)


def test_the_version(capsys):
    assert main.run(["posattn", "--version"]) == 0
    assert capsys.readouterr().out.startswith("posattn_jax")


@pytest.mark.parametrize("mode", main.MODES)
def test_help_of_a_mode_is_short(mode, capsys):
    assert main.run(["posattn", f"--mode={mode}", "--help"]) == 0
    usage, *_, example = capsys.readouterr().out.splitlines()
    assert usage.startswith(f"Usage: posattn --mode={mode}") and example.startswith(f"Example: posattn --mode={mode}")
    given = [each.partition("=")[0] for each in example.split() if each.startswith("--")]
    assert all(each[2:] in flags.FLAGS or each.startswith("--config.") for each in given)


def test_translating_may_change_only_the_decoding(digits_run):
    field = "--config.train.keep_checkpoints"
    code, _, err = run_forked(f"--workdir={digits_run}", "--mode=translate", f"{field}=1", config=None)
    assert code == 2 and f"{field}: expected only fields of task.decoding with --mode=translate" in err


@pytest.mark.parametrize("flag", ["", "--help", "-h", "--helpfull"])
def test_help_is_asked_for_without_a_config(flag, capsys):
    assert main.run(["posattn", flag] if flag else ["posattn"]) == 0
    page = capsys.readouterr().out
    assert all(mode in page for mode in main.MODES) and "--workdir" in page
    assert (len(page.splitlines()) > 60) == (flag == "--helpfull")


def test_help_of_a_mode_has_its_options(capsys):
    for flag in (["--mode=predict"], ["--mode", "predict"]):
        assert main.run(["posattn", *flag, "--help"]) == 0
        page = capsys.readouterr().out
        assert "--top" in page and "--vmap_seeds" not in page


def test_a_name_that_the_terminal_cannot_show_ends_no_run(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(main, "help_text", lambda _: "classes: é")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii", write_through=True))
    assert main.run(["posattn"]) == 0
    assert written.getvalue() == b"classes: \\xe9\n"
