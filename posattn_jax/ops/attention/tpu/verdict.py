"""Decides whether "auto" may use the fused kernel on a TPU: tries it in a separate process, and keeps the verdict.

Only one process can hold a TPU: `python -m posattn_jax.benchmarks.selfcheck` runs the trials, before a training. A
kernel that is wrong, hangs, is refused, or is slower than the other implementations is not used, and a warning says so
once. A kernel that hangs or crashes cannot harm the calling program, because it runs in the other process.

A trial that the kernel did not decide is no verdict, and is not kept: the other process cannot start, does not get the
device, has too little memory, or is killed.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jaxlib

from posattn_jax.ops.attention.platform import is_shared_out
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.xla.loop import Loop
from posattn_jax.system.errors import RunError
from posattn_jax.system.files import cache_folder, read_json, write_json
from posattn_jax.system.processes import child_environment

# The environment variable that keeps "auto" from using the kernel if it is 0.
VARIABLE = "POSATTN_FUSED"
KERNEL = "posattn_jax.ops.attention.select:fused_attention"
TRIAL = "posattn_jax.ops.attention.tpu.trial"  # the other process
SECONDS = 180.0  # for that process; after that a kernel that has begun counts as hung
UNDECIDED = "undecided"  # the outcome of a trial that is no verdict
BEGUN, VERDICT = "begun", "verdict"  # what the other process prints: its `machine()`, and then the verdict
PLATFORMS = ("tpu",)  # the others are not tried

_logger = logging.getLogger(__name__)


class Case(NamedTuple):
    """The kind of problem that a verdict is on.

    Attributes:
      grid_shape: S, each size rounded up to a power of 2: the grid for timing.
      half: the half-spans, likewise.
      num_heads, head_dim, dtype: those of the features.
      arrays: the names of those that the problem has next to query and value.
      is_full: whether sigma is the factor of a full covariance.
      span_mode, is_causal: as in `relative_attention`.
      kernel: MODULE:FUNCTION, which is called with a `Problem`.
    """

    grid_shape: tuple[int, ...]
    half: tuple[int, ...]
    num_heads: int
    head_dim: int
    dtype: str
    arrays: tuple[str, ...]
    is_full: bool = False
    span_mode: str = "multiply"
    is_causal: bool = False
    kernel: str = KERNEL


class Verdict(NamedTuple):
    """The result of a trial.

    Attributes:
      outcome: "trusted"; or "wrong", "slower", "refused" or "hung"; or `UNDECIDED`, which is never kept.
      reason: the reason in words.
      fused_ms, other_ms: the median times of a forward and backward pass, if they were measured.
    """

    outcome: str
    reason: str
    fused_ms: float | None = None
    other_ms: float | None = None


# Pallas is imported only where it is needed: the import takes a while, and Pallas is the part of jax that changes most.
def for_tpu(problem: Problem) -> Loop:
    """The kernels for a TPU; ValueError if they do not support the problem."""
    from posattn_jax.ops.attention.tpu.fused import FusedTpu

    return FusedTpu(problem)


def supports(problem: Problem) -> str | None:
    """The reason why a problem cannot use the fused kernel, if it is known before a trial; else None."""
    device = jax.devices()[0]
    if device.platform not in PLATFORMS:
        return f"the platform {device.platform}"
    if is_shared_out() or jax.process_count() > 1:  # trials that differ would give processes different programs
        return "several devices"
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE}=0"
    try:
        for_tpu(problem)
    except (ValueError, ImportError) as error:
        return str(error)
    return None


def is_trusted(problem: Problem) -> bool:
    """Whether the kernel is correct and the fastest, on this device, for problems like this one, which it supports."""
    return _outcome(case_of(problem)) == "trusted"


def case_of(problem: Problem) -> Case:
    """The case that a problem belongs to."""
    sizes = tuple(_power_of_2(size) for size in problem.grid_shape)
    half = problem.static_half or [max(1, size // 8) for size in sizes]
    *_, num_heads, head_dim = problem.query.shape
    return Case(
        sizes,
        tuple(min(_power_of_2(reach), size - 1) for reach, size in zip(half, sizes, strict=True)),
        num_heads,
        head_dim,
        problem.value.dtype.name,
        tuple(name for name in problem.given if name not in ("query", "value")),
        problem.sigma is not None and problem.sigma.ndim == 3,
        problem.span_mode,
        bool(problem.is_causal),
    )


def _power_of_2(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


@functools.cache
def _outcome(case: Case) -> str | None:
    """The outcome of the kept verdict, or None. Logged once."""
    here = machine()
    verdict = saved(case, here)
    if verdict is None:  # a second process cannot use the TPU now
        _logger.info(
            "the fused kernel is not tested on this device yet: run python -m posattn_jax.benchmarks.selfcheck"
        )
        return None
    if verdict.outcome != "trusted":
        _logger.warning(
            "attention does not use the fused kernel, which is %s here (%s); please send us %s",
            verdict.outcome,
            verdict.reason,
            place(case, here),
        )
    return verdict.outcome


def place(case: Case, machine: dict[str, str]) -> pathlib.Path:
    """The file of a verdict; its name depends on the case, the device, the versions of jax and the kernels' source."""
    asked = json.dumps([case, machine, _sources()])
    device = re.sub(r"[^\w.-]+", "_", machine["device"])
    return cache_folder() / "fused" / f"{device}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}.json"


def saved(case: Case, machine: dict[str, str]) -> Verdict | None:
    """The verdict on disk, or None."""
    try:
        return Verdict(**read_json(place(case, machine))["verdict"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def save(case: Case, verdict: Verdict, machine: dict[str, str]) -> Verdict:
    """Writes the verdict, with all that it depends on, and returns it. A failure to write is only logged.

    What is undecided is not written.
    """
    if verdict.outcome == UNDECIDED:
        return verdict
    try:
        write_json(place(case, machine), {"verdict": verdict._asdict(), "case": case._asdict(), **machine})
    except OSError as error:
        _logger.info("the verdict on the fused kernel cannot be saved: %s", error)
    return verdict


def machine() -> dict[str, str]:
    """The device and the versions that a verdict depends on. This process then holds the device."""
    device = jax.devices()[0]
    versions = {"jax": jax.__version__, "jaxlib": jaxlib.__version__}
    return {"platform": device.platform, "device": device.device_kind, **versions}


def machine_apart() -> dict[str, str]:
    """The same, from another process, which gives the device back when it ends. Raises RunError if it fails."""
    program = f"import json; from {__name__} import machine; print(json.dumps(machine()))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"another process does not get the device ({_last_line(done.stderr, done.returncode)})")
    return json.loads(done.stdout.splitlines()[-1])


@functools.cache
def _sources() -> str:
    folder = pathlib.Path(__file__).parent
    texts = [path.read_bytes() for path in sorted(folder.rglob("*.py"))]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def tried(case: Case, machine: dict[str, str], seconds: float = SECONDS) -> Verdict:
    """The verdict from a separate process on this device, which may take at most `seconds`.

    The process says when it begins with the kernel. A failure before that is undecided.
    """
    command = [sys.executable, "-m", TRIAL, json.dumps(case)]
    options: dict[str, Any] = {"env": child_environment(), "stdin": subprocess.DEVNULL, "capture_output": True}
    try:
        done = subprocess.run(command, **options, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        reason = f"no answer after {seconds:g} s"
        return (
            Verdict("hung", reason) if BEGUN in _told(error.stdout) else Verdict(UNDECIDED, f"{reason}, and no start")
        )
    except OSError as error:
        return Verdict(UNDECIDED, str(error))
    told = _told(done.stdout)
    if told.get(BEGUN, machine) != machine:
        return Verdict(UNDECIDED, f"the other process has {told[BEGUN]['device']}, not {machine['device']}")
    if VERDICT in told:
        return Verdict(*told[VERDICT])
    is_crash = BEGUN in told and done.returncode not in (-signal.SIGKILL, -signal.SIGTERM)
    reason = _last_line(done.stderr.decode(errors="replace"), done.returncode)
    return Verdict("refused" if is_crash else UNDECIDED, reason)


def _told(stdout: bytes | None) -> dict[str, Any]:
    """What the trial printed: objects on lines of their own, between lines of libraries."""
    found: dict[str, Any] = {}
    for line in (stdout or b"").decode(errors="replace").splitlines():
        if line.startswith((f'{{"{BEGUN}', f'{{"{VERDICT}')):
            with contextlib.suppress(ValueError):  # the process ended within the line
                found |= json.loads(line)
    return found


def _last_line(stderr: str, exit_code: int) -> str:
    return next(reversed(stderr.strip().splitlines()), f"exit code {exit_code}")
