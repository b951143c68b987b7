"""What the check of attention on devices is made of: records that survive, tables, the launchers."""

import json
import os
import pathlib
import subprocess
import time

import pytest

from benchmarks.device import machine, table
from benchmarks.device.record import AGAIN, Clock, Record

ROOT = pathlib.Path(__file__).parents[2]
HEADER = {"source": "abc", "case": {"half": (1, 2)}}
PATIENT = Clock(time.time(), 60.0, 600.0)


def test_a_record_goes_on_where_its_header_is_the_same(tmp_path):
    path = tmp_path / "case.json"
    record = Record(path, HEADER)
    record.results("forward")["tiled"] = {"median_ms": 1.0}
    record.save()
    assert Record(path, HEADER).results("forward") == {"tiled": {"median_ms": 1.0}}
    assert Record(path, HEADER | {"source": "abd"}).results("forward") == {}


def test_what_does_not_come_back_is_tried_twice(tmp_path):
    path = tmp_path / "case.json"
    for tries in (1, 2):
        record = Record(path, HEADER)
        assert record.results("forward") == {}
        with pytest.raises(KeyError), record.attempt("forward", "fused", PATIENT):
            left_behind = path.read_text()
            raise KeyError
        assert "running" not in json.loads(path.read_text())
        path.write_text(left_behind)  # as a process leaves it that is killed
        assert Record(path, HEADER).values["tries"] == {"forward fused": tries}
    absent = {"absent": "ended the process that ran it, 2 times"}
    assert Record(path, HEADER).results("forward") == {"fused": absent}


@pytest.mark.parametrize(
    "minutes, step_seconds, found", [(60.0, 0.05, {"fused": {"absent": "took more than 0.05 s"}}), (-60.0, 600.0, {})]
)
def test_what_hangs_ends_the_process(tmp_path, monkeypatch, minutes, step_seconds, found):
    """Of a step that the end of the time has met nothing is said: it goes on another time."""
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    record = Record(tmp_path / "case.json", HEADER)
    with (
        pytest.raises(KeyError, match="running"),
        record.attempt("forward", "fused", Clock(time.time(), minutes, step_seconds)),
    ):
        for _ in range(1000):
            if ended:
                break
            time.sleep(0.01)
    assert ended == [AGAIN]
    again = Record(tmp_path / "case.json", HEADER)
    assert again.results("forward") == found and "tries" not in again.values


def made_results(folder):
    """Two results and their summary, as the check writes them."""
    device = {"device": {"kind": "A GPU", "platform": "gpu"}, "versions": {"jax": "0.10.2", "driver": "580.1"}}
    case = {"name": "attention_a", "shape": "2d64", "half": 8, "batch": 8, "head_dim": 64, "dtype": "bfloat16"}
    implementations = {
        "fused": {"median_ms": 0.5, "temp_mib": 3.0, "error": 0.004, "agrees": True},
        "cudnn": {"absent": "no cuDNN"},
    }
    section = {"implementations": implementations, "floor_ms": 0.1, "ratios": {"fused/floor": 5.0}}
    timing = device | {"case": case, "rates": {"from": "data sheet"}, "passes": {"forward": section}}
    implementations = {"tiled": {"error": 1e-6, "agrees": True}, "fused": {"error": 0.3, "agrees": False}}
    parity = device | {
        "case": {"name": "parity_b"},
        "passes": {"forward_backward": {"implementations": implementations}},
    }
    parity["failures"] = ["RuntimeError: lost", "RuntimeError: lost"]
    summary = device | {"done": ["attention_a"], "given_up": ["parity_b"], "left_out": ["attention_c"]}
    for name, values in (("attention_a", timing), ("parity_b", parity), ("summary", summary)):
        (folder / f"{name}.json").write_text(json.dumps(values))


def test_tables(tmp_path, capsys):
    made_results(tmp_path)
    assert table.run(["table", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "A GPU; jax 0.10.2, driver 580.1."
    head, row = ([cell.strip() for cell in lines[i].strip("|").split("|")] for i in (2, 4))
    cells = dict(zip(head, row, strict=True))
    assert cells["grid, half-span, batch, d"] == "2d64, 8, 8, 64" and cells["dtype"] == "bfloat16"
    assert cells["fused"] == "0.500 / -" and cells["floor"] == "0.100 / -" and cells["fused/floor"] == "5.00 / -"
    assert not cells.keys() & {"cudnn", "fused/tiled"}  # they would be empty
    assert cells["fused error"] == "4.0e-03 / -" and cells["fused MiB"] == "3.00 / -"
    assert "| parity_b | 1.0e-06 | **3.0e-01** |" in lines
    assert "- cudnn is absent from attention_a forward: no cuDNN" in lines
    assert lines.count("- parity_b failed as a whole: RuntimeError: lost") == 1
    assert "Not measured, or only in part: attention_c." in lines
    summary = json.loads((tmp_path / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"left_out": list("abcde")}))
    assert table.run(["table", str(tmp_path)]) == 0
    assert "Not measured, or only in part: a, b, c and 2 more." in capsys.readouterr().out


def test_tables_are_put_into_a_file(tmp_path, capsys):
    made_results(tmp_path)
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- gpu -->\nold\n<!-- /gpu -->\nafter\n")
    for _ in range(2):
        assert table.run(["table", str(tmp_path), f"--into={readme}"]) == 0
    text = readme.read_text()
    assert text.startswith("before\n<!-- gpu -->\n\nA GPU;") and text.endswith("<!-- /gpu -->\nafter\n")
    assert "old" not in text and text.count("A GPU;") == 1
    readme.write_text("no marks")
    assert table.run(["table", str(tmp_path), f"--into={readme}"]) == 2
    assert 'expected one line "<!-- gpu -->"' in capsys.readouterr().err
    assert table.run(["table", str(tmp_path / "none")]) == 2
    assert "summary.json: no such file" in capsys.readouterr().err
    assert table.run(["table"]) == 2


def test_versions_of_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "driver" not in machine.describe_device()
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 580.159.04\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert machine.describe_device()["driver"] == "580.159.04"


def launch(folder, *arguments, script="tpu_check.sh", **environment):
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}
    command = [ROOT / "launch" / script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def make_python(folder, missing="", codes="0"):
    """A `python` that misses packages, notes how it was called, and ends with one code after the other."""
    path = folder / "python"
    path.write_text(f"""#!/bin/bash
if [ "$1" = -c ]; then printf '%s' '{missing}'; exit; fi
echo "$XLA_PYTHON_CLIENT_PREALLOCATE $*" >> {folder}/calls
codes=({codes})
exit "${{codes[$(wc -l < {folder}/calls) - 1]}}"
""")
    path.chmod(0o755)
    return str(path)


def test_the_launcher_goes_on_after_what_ended_a_process(tmp_path):
    done = launch(tmp_path, "--minutes=3", "--only=a b", PYTHON=make_python(tmp_path, codes="75 139 1 0"))
    assert done.returncode == 1
    assert [line.split(": ", 1)[1] for line in done.stderr.splitlines()] == [
        "a process ended with exit code 75: going on",
        "a process ended with exit code 139: going on",
    ]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 3 and len(set(calls)) == 1
    assert calls[0].startswith("false -m benchmarks.device.check --started=")
    assert calls[0].endswith(" --minutes=3 --only=a b")


@pytest.mark.parametrize("script, jax", [("gpu_check.sh", "jax[cuda12]"), ("tpu_check.sh", "jax[tpu]")])
def test_the_launcher_says_what_is_missing(tmp_path, script, jax):
    done = launch(tmp_path, script=script, PYTHON=make_python(tmp_path, missing="jax absl"))
    assert done.returncode == 2 and done.stderr.startswith(f"{script}: ") and "has no jax absl: pip" in done.stderr
    assert f"pip install '{jax}'" in done.stderr
    done = launch(tmp_path, script=script, PYTHON="/no/such/python")
    assert done.returncode == 2 and "no /no/such/python: set PYTHON=" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_launcher_for_gpus(tmp_path):
    done = launch(tmp_path, "--only=a b", script="gpu_check.sh", PYTHON=make_python(tmp_path, codes="139"))
    assert done.returncode == 139 and not done.stderr
    assert (tmp_path / "calls").read_text() == "false -m benchmarks.device.gpu_kernels --only=a b\n"
