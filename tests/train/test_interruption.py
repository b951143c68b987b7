"""A signal is answered while compiled code runs, for whose end Python's own handlers wait."""

import hashlib
import os
import signal
import threading
import time

import pytest

from posattn_jax.system.processes import signals
from posattn_jax.train import interruption
from posattn_jax.train.interruption import answered, answered_if_late


def signal_soon(signum):
    threading.Timer(0.05, os.kill, (os.getpid(), signum)).start()


def compute():
    """Half a second or more in compiled code, during which other threads may run."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000)


def test_the_answer_does_not_wait_for_the_handler():
    order = []
    with (
        answered(lambda signum: order.append(("answered", signum))),
        signals({signal.SIGUSR1: lambda *_: order.append("handled")}),
    ):
        signal_soon(signal.SIGUSR1)
        began = time.perf_counter()
        compute()
        seconds = time.perf_counter() - began
    assert seconds > 0.1, "or the signal came too late"
    assert order == [("answered", signal.SIGUSR1), "handled"]
    assert signal.set_wakeup_fd(-1) == -1, "what was before is restored"


@pytest.mark.parametrize("late", [True, False])
def test_ctrl_c_is_answered_where_it_has_to_wait(monkeypatch, capsys, late):
    monkeypatch.setattr(interruption, "LATE", 0.02 if late else 60)
    with pytest.raises(KeyboardInterrupt), signals({signal.SIGINT: signal.default_int_handler}), answered_if_late():
        signal_soon(signal.SIGINT)
        compute()
        time.sleep(60)
    told = capsys.readouterr().err
    assert told == ("SIGINT: stops when what is being compiled or computed is done\n" if late else "")
