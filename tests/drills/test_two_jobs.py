"""Two jobs that are started on one run folder at the same moment."""

import json

import pytest

from tests.support.command import start

TIMES = 5


@pytest.mark.slow
def test_one_of_two_trains(tmp_path):
    for i in range(TIMES):
        workdir = tmp_path / str(i)
        both = [start(f"--workdir={workdir}", "--config.train.total_steps=30") for _ in range(2)]
        said = [process.communicate(timeout=300) for process in both]
        codes = [process.returncode for process in both]
        assert sorted(codes) == [0, 2], said
        (refused,) = (err for code, (_, err) in zip(codes, said, strict=True) if code)
        assert refused == f"posattn_jax: error: --workdir={workdir}: another process is training there\n"
        assert json.loads((workdir / "summary.json").read_text())["final"]["step"] == 30
    print(f"two jobs on one folder: {TIMES} times one trained, the other was refused")
