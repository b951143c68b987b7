"""Disks that are full, or cannot be written to: what a run says, and that it goes on where it was."""

import re
import shutil
import subprocess

import pytest

from tests.support.command import run
from tests.support.recorded import figures_of

ARGUMENTS = ("--config.train.total_steps=40", "--config.train.checkpoint_steps=5", "--config.train.log_steps=5")


def mount(folder, options):
    """A disk in memory; skipped where the machine does not allow it."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs: run as root")


@pytest.fixture
def disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, "size=64m")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    code, _, err = run(*ARGUMENTS, f"--workdir={workdir}")
    assert code == 0, err
    return figures_of(workdir)


def fill(folder, free_kib):
    """Leaves so many KiB of the disk free."""
    free = shutil.disk_usage(folder).free
    (folder / "filler").write_bytes(b"\0" * max(0, free - free_kib * 1024))


@pytest.mark.slow
@pytest.mark.parametrize("free_kib", [0, 4, 16, 64, 128, 256, 512, 1024])
def test_a_disk_that_fills_up(disk, whole, free_kib):
    """At whatever moment: one line, nothing that was saved is lost, and with room again it ends as if undisturbed."""
    workdir = disk / "run"
    code, _, err = run(
        "--config.train.total_steps=40", *ARGUMENTS[1:], f"--workdir={workdir}", "--config.train.total_steps=10"
    )
    assert code == 0, err
    fill(disk, free_kib)
    code, _, err = run(*ARGUMENTS, f"--workdir={workdir}")
    print(f"full disk, {free_kib} KiB free: exit code {code}, {err.strip().splitlines()[-1]}")
    assert code in (0, 1) and "Traceback" not in err
    if code:
        assert f"the disk is full ({workdir})" in err
    (disk / "filler").unlink()
    code, _, err = run(*ARGUMENTS, f"--workdir={workdir}")
    assert code == 0, err
    assert [row for row in figures_of(workdir) if row["step"] > 10] == [row for row in whole if row["step"] > 10]


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_to(disk, whole):
    workdir = disk / "run"
    code, _, err = run(*ARGUMENTS, f"--workdir={workdir}", "--config.train.total_steps=10")
    assert code == 0, err
    mount(disk, "remount,ro,size=64m")
    code, _, err = run(*ARGUMENTS, f"--workdir={workdir}")
    assert code == 2, err
    assert re.fullmatch(rf"posattn_jax: error: --workdir={workdir}: cannot be written to .*\n", err)
    mount(disk, "remount,rw,size=64m")
    code, _, err = run(*ARGUMENTS, f"--workdir={workdir}")
    assert code == 0, err
    assert [row for row in figures_of(workdir) if row["step"] > 10] == [row for row in whole if row["step"] > 10]
