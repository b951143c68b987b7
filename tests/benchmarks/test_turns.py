"""Commands that take turns: counted each in its own time, and ended."""

import json
import sys

import pytest

from benchmarks.cpu import turns

# Stands for a training: counts an update every so often.
COUNTS = """
import json, pathlib, sys, time
every, folder = float(sys.argv[1]), pathlib.Path(sys.argv[2].partition("=")[2])
folder.mkdir()
for step in range(1, 10**6):
    time.sleep(every)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "epoch": 0, "split": "speed", "name": "x", "value": 0}) + "\\n")
"""


@pytest.fixture
def command(tmp_path):
    (tmp_path / "counts.py").write_text(COUNTS)
    return lambda every: f"{sys.executable} {tmp_path / 'counts.py'} {every}"


def test_turns(tmp_path, capsys, command):
    """What runs ten times as often is faster, on any machine."""
    arguments = ["--rounds=3", "--seconds=.3", f"--out={tmp_path}", f"slow={command(0.1)}", f"quick={command(0.01)}"]
    assert turns.main(["turns", *arguments]) == 0
    found = json.loads((tmp_path / "results.json").read_text())
    slow, quick = found["commands"]["slow"], found["commands"]["quick"]
    assert slow["ratio"] == 1
    assert quick["ratio"] == pytest.approx(quick["updates_per_second"] / slow["updates_per_second"])
    assert quick["updates"] > slow["updates"] > 0
    for each in (slow, quick):
        assert each["updates_per_second"] == pytest.approx(each["updates"] / each["seconds"])
        assert each["seconds"] >= 0.9
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out] == ["slow", "quick"]
    assert out[0].endswith("1.00 x slow")


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["a=true"], 2, "1 commands: expected two or more"),
        (["a=true", "a=true"], 2, '"a=true": expected NAME=COMMAND, each name once'),
        (["true", "b=true"], 2, '"true": expected NAME=COMMAND'),
        (["--rounds=0", "a=true", "b=true"], 2, "--rounds=0"),
        (["--seconds=nan", "a=true", "b=true"], 2, "--seconds=nan"),
        (["a=echo no such file; false", "b=true"], 1, "a ended too early, with exit code 1: "),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, code, message):
    assert turns.command_line.run(turns.main, ["turns", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1, err
