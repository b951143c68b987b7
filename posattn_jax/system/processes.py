"""Several processes that work on one run: how they find each other, which one writes and prints, and what stops them.

Every process runs the same program on its share of the data. The run folder is on a disk that all of them see. The
first process writes it; checkpoints are written by all processes together.
"""

import contextlib
import fcntl
import functools
import logging
import os
import pathlib
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any

import jax

from posattn_jax.system.compat import global_state, multihost_utils
from posattn_jax.system.errors import InputError

# Environment variables that launch/local.sh sets, or the user who starts the processes by hand.
COORDINATOR, COUNT, INDEX = "POSATTN_COORDINATOR", "POSATTN_PROCESS_COUNT", "POSATTN_PROCESS_INDEX"
# A process that has sent nothing for this long counts as dead: the others end, and the launcher starts all again.
HEARTBEAT_SECONDS = 100
# How long a process waits for what the others answer to a question.
ANSWER_SECONDS = 120

_logger = logging.getLogger(__name__)


def join(distributed: bool = False) -> None:
    """Connects to the other processes of the job, if there are any. Call it before anything asks jax for devices.

    The processes are given by the environment variables POSATTN_COORDINATOR (host:port of the first),
    POSATTN_PROCESS_COUNT and POSATTN_PROCESS_INDEX. Without these, a SLURM step with several tasks is detected; with
    `distributed`, whatever jax detects: TPU pods, Kubernetes, Open MPI. Only the first process prints on stdout.

    Raises:
      InputError: some of the variables are missing or wrong, or jax finds no other processes.
    """
    given = [name for name in (COORDINATOR, COUNT, INDEX) if os.environ.get(name)]
    if given:
        missing = [name for name in (COORDINATOR, COUNT, INDEX) if name not in given]
        if missing:
            raise InputError(f"{missing[0]} is not set, and {given[0]} is: expected all of them or none")
        count, index = _number(COUNT), _number(INDEX)
        if not 0 <= index < count:
            raise InputError(f"{INDEX}={index}: expected 0 to {count - 1}, one less than {COUNT}")
        _initialize(coordinator_address=os.environ[COORDINATOR], num_processes=count, process_id=index)
    elif distributed or int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        _initialize()


def child_environment() -> dict[str, str]:
    """The environment for another Python that imports what this one imports: its PYTHONPATH is the `sys.path` here.

    A package may be importable here only because a program has changed `sys.path`.
    """
    given = os.environ.get("PYTHONPATH")
    path = [*(given.split(os.pathsep) if given else ()), *map(os.path.abspath, sys.path)]  # "" is the current folder
    return os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}


def _initialize(**arguments) -> None:
    try:
        jax.distributed.initialize(**arguments, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
    except ValueError as error:
        raise InputError(f"--distributed: no other processes are found here ({error})") from error
    if not is_first():
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (as long as the process)


def _number(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError as error:
        raise InputError(f"{name}={os.environ[name]}: expected a whole number") from error


def is_first() -> bool:
    """Whether this process writes the run's files and prints its progress."""
    return jax.process_index() == 0


@contextlib.contextmanager
def signals(handlers: Mapping[Any, Any]) -> Iterator[dict[int, Any]]:
    """Handles signals with `handlers` inside the block; yields the handlers from before."""
    previous = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    try:
        yield previous
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def first_goes_ahead(name: str) -> Iterator[None]:
    """Runs the block in the first process alone, then in the others, which find its results in the caches."""
    if is_first():
        yield
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)
    if not is_first():
        yield


def all_answer(question: str, answer: str) -> bool:
    """Whether all processes of the job answer a question alike; all of them get the same reply.

    They need not ask at the same time. A process waits for the answers of the others, at most `ANSWER_SECONDS`. Then
    the reply is no for all, with a warning. It is remembered.
    """
    if jax.process_count() == 1:
        return True
    client = global_state.client
    return client is not None and _reply(client, question, answer)


@functools.cache
def _reply(client: Any, question: str, answer: str) -> bool:
    key, count = f"posattn_jax/{question}", jax.process_count()
    client.key_value_set(f"{key}/{jax.process_index()}", answer)
    try:
        found = {client.blocking_key_value_get(f"{key}/{index}", 1000 * ANSWER_SECONDS) for index in range(count)}
        reply = "yes" if found == {answer} else "no"
    except jax.errors.JaxRuntimeError:
        _logger.warning("%s: not all of %d processes have answered in %d s", question, count, ANSWER_SECONDS)
        reply = "no"
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # another process was the first to reply
        client.key_value_set(f"{key}/reply", reply)
    return client.blocking_key_value_get(f"{key}/reply", 1000 * ANSWER_SECONDS) == "yes"


@contextlib.contextmanager
def claim(path: pathlib.Path) -> Iterator[IO[str] | None]:
    """A file opened for appending and locked, or None if another process holds the lock.

    The lock belongs to the open file: a child process that has inherited the file keeps it if this process is killed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for _ in range(10):  # `is_claimed` holds it for a moment
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.02)
            else:
                yield file
                return
        yield None


def is_claimed(path: pathlib.Path) -> bool:
    """Whether a process holds the lock of `claim`."""
    if not path.exists():
        return False
    with path.open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
