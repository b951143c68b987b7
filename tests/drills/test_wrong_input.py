"""Wrong configs and wrong command lines, as hypothesis makes them: one line each, the right exit code, no traceback."""

import collections
import importlib
import re

import pytest
from flax.traverse_util import flatten_dict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.command import run_forked

EXAMPLES = 200
SEEN = collections.Counter()

FIELDS = sorted(flatten_dict(importlib.import_module("configs.digits").get_config("tiny").to_dict(), sep="."))
# None so large that a run of it would fill the machine, or not end.
NUMBERS = ("0", "-1", "-7", "3", "17", "0.5", "-0.5", "1.5", "nan", "inf", "-inf", "1e400", "0x10", "1_0", "٣")
TUPLES = ("()", "(1,)", "(1, 2", "(0, 0)", "(-1, 4)", "(2, 2, 2, 2)", "('a',)", "[1]", "{}", "(None,)")
WORDS = (
    "",
    " ",
    "None",
    "True",
    "maybe",
    "nonsense",
    "../..",
    "/dev/null",
    "ä",
    "\n",
    "'",
    '"',
    "{x}",
    "%s",
    "a" * 300,
)
VALUES = st.sampled_from(NUMBERS + TUPLES + WORDS) | st.text(max_size=6).filter(lambda text: "\0" not in text)

FIELD = st.builds(lambda name, value: f"--config.{name}={value}", st.sampled_from(FIELDS), VALUES)
UNKNOWN = st.builds(
    lambda name, more: f"--config.{name}{more}=1", st.sampled_from(FIELDS), st.sampled_from(("x", ".x", "."))
)
FLAG = st.sampled_from(
    ("--mode", "--mode=", "--mode=dance", "--nomode", "--workdir", "--seeds=1", "--workers=-1", "--distributed=perhaps")
) | st.builds(lambda text: f"--{text}", st.text(max_size=8).filter(lambda text: "\0" not in text))
STRAY = st.sampled_from(("stray", "-", "--", "-x", "=", "--=1", "--config.", "--config.=1"))
CONFIG = st.sampled_from(
    (
        "configs/digits.py:huge",
        "configs/none.py",
        "configs",
        "/dev/null",
        "README.md",
        "",
        ":tiny",
    )
)
CHANGES = st.lists(st.one_of(*[FIELD] * 6, UNKNOWN, FLAG, STRAY), min_size=1, max_size=2)


@pytest.mark.slow
def test_wrong_input_is_one_line(tmp_path_factory):
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(
        changes=CHANGES, config=st.one_of(st.just("configs/digits.py:tiny"), st.just("configs/digits.py:tiny"), CONFIG)
    )
    def check(changes, config):
        workdir = tmp_path_factory.mktemp("run") / "run"
        code, _, err = run_forked(f"--workdir={workdir}", *changes, config=config)
        SEEN[code] += 1
        assert code in (0, 1, 2), (changes, config, err)
        assert "Traceback" not in err, (changes, config, err)
        if code:
            last = err.strip().splitlines()[-1]
            assert re.match(r"posattn_jax: error: (?!\w+(Error|Exception): )", last), (changes, config, last)
        if code == 2:
            assert len(err.strip().splitlines()) == 1, (changes, config, err)
            assert not workdir.exists(), (changes, config, "nothing is left behind")

    check()
    print(f"wrong input: {sum(SEEN.values())} command lines, exit codes {dict(SEEN)}")
