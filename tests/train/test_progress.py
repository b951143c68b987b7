"""What a run tells while it goes on: without a terminal, on one, and in a notebook."""

import contextlib
import io
import re
import sys
import threading
import time

import pytest

from posattn_jax.system.doing import doing
from posattn_jax.train import progress
from posattn_jax.train.loop import Trainer
from posattn_jax.train.progress import Progress, aligned, speed
from tests.train.made_run import make_trainer


class Terminal(io.StringIO):
    def isatty(self):
        return True


def train(tmp_path, monkeypatch, capsys, seconds, update_seconds=0.0):
    """The lines that a run prints, whose every update takes at least so long."""
    monkeypatch.setattr(progress, "LINE_SECONDS", seconds)
    trainer = make_trainer(tmp_path, total_steps=12, log_steps=50)
    update = trainer.program.update

    def slowly(*arguments):
        time.sleep(update_seconds)
        return update(*arguments)

    trainer.program.update = slowly
    trainer.run()
    trainer.close()
    return capsys.readouterr().err.splitlines()


@pytest.mark.slow
def test_a_log_has_a_line_every_few_seconds(tmp_path, monkeypatch, capsys):
    lines = train(tmp_path, monkeypatch, capsys, seconds=0.3, update_seconds=0.1)
    assert any(re.fullmatch(r"first update \d+\.\d s after the start", line) for line in lines)
    told = [line for line in lines if re.match(r"epoch [\d.]+/2 ", line)]
    assert 2 <= len(told) <= 4
    before, after = told[0], told[-1]
    assert re.fullmatch(r"epoch 0\.\d+/2  loss \d\.\d+  [\d,.]+ images/s  00:0\d left", before)
    assert re.fullmatch(r"epoch [12]\.\d+/2  loss [\d.]+  accuracy [\d.]+  [\d,.]+ images/s  00:0\d left", after)
    assert max(map(len, lines)) <= 80


def test_a_run_says_what_it_compiles(tmp_path, monkeypatch, capsys):
    program = make_trainer(tmp_path / "before", total_steps=12, log_steps=50).program
    init = program.init
    monkeypatch.setattr(program, "init", lambda *arguments: (time.sleep(1.0), init(*arguments))[1])
    monkeypatch.setattr("posattn_jax.system.doing.AFTER", 0.5)
    capsys.readouterr()
    Trainer(program, [tmp_path / "slow"]).close()
    line = "compiling the initialisation (may take minutes; later runs read it) ..."
    assert line in capsys.readouterr().err.splitlines() and len(f"{line} 599 s") <= 80


def test_a_log_of_a_quick_run_has_its_evaluations_alone(tmp_path, monkeypatch, capsys):
    lines = train(tmp_path, monkeypatch, capsys, seconds=30.0)
    assert not [line for line in lines if re.match(r"epoch [\d.]+/", line)]
    rows = lines[next(i for i, line in enumerate(lines) if line.startswith("epoch 1.00")) :][:4]
    assert [row[12:].split()[0] for row in rows] == ["train", "validation", "speed", "pairs"]
    train_row, validation = rows[:2]
    assert train_row.index("loss") == validation.index("loss") and train_row.index("acc") == validation.index("acc")


def test_a_bar_shows_one_speed_and_the_time_left(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    bar = Progress(total_steps=100, step=20, steps_per_epoch=10)
    bar.begin(21)
    bar._began -= 30
    bar.show(31, ["loss 0.5", speed(1234.5, "images")])
    drawn = sys.stderr.getvalue().split("\r")
    bar.close()
    assert any(text.startswith("epoch 3.10/10  loss 0.5  1,234 images/s  03:27 left |") for text in drawn)
    assert drawn[-1].count("/s") == 1 and max(map(len, drawn)) <= 80


def test_a_notebook_has_a_bar(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    bar = Progress(total_steps=4, step=0, steps_per_epoch=2)
    bar.begin(1)
    bar.show(2, ["loss 0.5"])
    bar.close()
    assert "epoch 1.00/2  loss 0.5" in capsys.readouterr().err


def test_silence(capsys):
    silent = Progress(total_steps=4, step=0, steps_per_epoch=2, silent=True)
    silent.begin(1)
    silent._shown -= 1000
    silent.show(2, ["loss 0.5"])
    silent.lines(["epoch 1.00"])
    silent.close()
    assert not silent.is_due and capsys.readouterr().err == ""


def test_long_rows_are_broken_below_their_figures():
    figures = [f"{name} {value:.4f}" for name, value in (("loss", 4.1), ("log_likelihood", -4.1), ("perplexity", 60.3))]
    lines = aligned("seed 3: epoch 1.00", {"train": figures, "validation": [*figures, "accuracy 0.3000"]})
    assert lines == [
        "seed 3: epoch 1.00  train       loss 4.1000  log_likelihood -4.1000",
        "                                perplexity 60.3000",
        "                    validation  loss 4.1000  log_likelihood -4.1000",
        "                                perplexity 60.3000  accuracy 0.3000",
    ]


def test_speeds():
    assert [speed(rate, "words") for rate in (0.1234, 12.34, 1234567.8)] == [
        "0.123 words/s",
        "12.3 words/s",
        "1,234,568 words/s",
    ]


def test_what_takes_long_is_told_while_it_lasts(capsys):
    with doing("compiling", after=0.05, every=0.1):
        time.sleep(0.4)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["compiling ...", "compiling ... 0 s"] and len(lines) <= 4


@pytest.mark.parametrize("after, expected", [(10.0, ""), (0.0, "reading ...\n")], ids=["quick", "at once"])
def test_what_is_quick_is_not_told(capsys, after, expected):
    threads = threading.active_count()
    with contextlib.suppress(KeyError), doing("reading", after=after):
        raise KeyError
    assert capsys.readouterr().err == expected and threading.active_count() == threads
