"""Text that goes on: exactly what the model says, whatever the chunks; options, and what is refused."""

import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.system.errors import InputError
from posattn_jax.tasks.causal_lm import CausalLanguageModelling
from posattn_jax.use import generate, trained
from posattn_jax.use.generate import CHUNK, Generator
from tests.support import command
from tests.support.command import run_forked, told
from tests.support.made_runs import make_characters

PROMPT = np.frombuffer(b"The dog ", np.uint8).astype(np.int32)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Of a span of a few of 16 places."""
    return make_characters(tmp_path_factory.mktemp("runs") / "characters", {"data.length": 16})


@pytest.fixture(scope="module")
def run(workdir):
    return trained.of_run(workdir, (CausalLanguageModelling,))


def text(generator, prompt, number, seed=0):
    return np.concatenate(list(generator.tokens(prompt, number, seed))).tolist()


@pytest.mark.slow
def test_the_likeliest_tokens_are_those_of_the_whole_model(run):
    """Greedy, within the length of training: each token is the whole model's, of all that stand before it."""
    generator = Generator(run.task, run.params, temperature=0.0)
    (half,) = (int(half[0]) for half in run.task.half_spans(run.params))
    assert generator.lengths == (half + 1,) and half < 15
    made = text(generator, PROMPT, 16 - len(PROMPT))
    row, whole = PROMPT.tolist(), jax.jit(lambda tokens: run.task.apply(run.params, {"tokens": tokens})[0])
    for token in made:
        logits = whole(jnp.asarray([row + [0] * (16 - len(row))]))
        assert token == int(np.argmax(logits[0, len(row) - 1]))
        row.append(token)


@pytest.mark.slow
def test_the_text_does_not_depend_on_where_it_was_cut(run):
    generator = Generator(run.task, run.params)
    whole = text(generator, PROMPT, 2 * CHUNK + 5, seed=3)
    assert len(whole) == 2 * CHUNK + 5
    start, other = (text(generator, PROMPT, CHUNK - 2, seed) for seed in (3, 4))
    assert whole[: CHUNK - 2] == start != other
    prompt = np.concatenate([PROMPT, whole[:CHUNK]]).astype(np.int32)
    assert text(generator, prompt, CHUNK + 5, seed=3) == whole[CHUNK:]


@pytest.mark.slow
def test_only_the_top_k_are_drawn(run):
    """Of one, whatever the temperature, it is the likeliest; of three, one of the three."""
    greedy = text(Generator(run.task, run.params, temperature=0.0), PROMPT, 30)
    assert text(Generator(run.task, run.params, temperature=5.0, top_k=1), PROMPT, 30) == greedy
    generator = Generator(run.task, run.params, temperature=100.0, top_k=3)
    first = {text(generator, PROMPT, 1, seed)[0] for seed in range(40)}
    batch = {"tokens": jnp.asarray([PROMPT.tolist() + [0] * (16 - len(PROMPT))])}
    logits = np.asarray(jax.jit(run.task.apply)(run.params, batch)[0])[0, len(PROMPT) - 1]
    assert first == set(np.argsort(logits)[-3:].tolist())


@pytest.mark.parametrize("top_k", [0, 2])
def test_temperatures_at_the_ends_of_their_range(run, top_k):
    """Near 0 it is the likeliest token, also where logits / temperature overflows; infinite: any of the top k."""
    logits, drawn = jnp.array([1.0, 5.0, 3.0, -2.0, 4.0]), {}
    for temperature in (1e-50, 1e-38, 1e-20, 1e38, float("inf")):
        draw = jax.jit(jax.vmap(functools.partial(Generator(run.task, run.params, temperature, top_k)._draw, logits)))
        drawn[temperature] = set(draw(jax.random.split(jax.random.key(0), 99)).tolist())
    assert drawn.pop(1e-50) == drawn.pop(1e-38) == drawn.pop(1e-20) == {1}
    assert drawn.pop(1e38) == drawn.pop(float("inf")) == ({1, 4} if top_k else set(range(5)))


def test_what_is_written(workdir, capsys, told_at_once):
    """The prompt, and as many characters more; bytes that are no UTF-8 do not stop it."""
    output = io.StringIO()
    generate.generate(workdir, "Grüße, ".encode(), output, number=CHUNK + 1, temperature=0.5, seed=1)
    assert output.getvalue().startswith("Grüße, ") and output.getvalue().endswith("\n")
    assert capsys.readouterr().err.splitlines() == ["reading the run ...", "compiling, and reading the prompt ..."]
    nothing = io.StringIO()
    generate.generate(workdir, b"", nothing, number=3)
    assert 1 < len(nothing.getvalue()) <= 4


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({"number": 0}, "--length=0"),
        ({"temperature": -1.0}, "--temperature=-1.0"),
        ({"temperature": float("nan")}, "--temperature=nan"),
        ({"top_k": -1}, "--top_k=-1"),
        ({"top_k": 257}, "--top_k=257"),
    ],
)
def test_numbers_out_of_range(workdir, fields, expected):
    with pytest.raises(InputError, match=expected):
        generate.generate(workdir, b"a", io.StringIO(), **fields)


def test_the_command(workdir, tmp_path):
    """The prompt is a flag, or the standard input; wrong flags are one line."""
    arguments = ("--mode=generate", f"--workdir={workdir}", "--length=20", "--seed=7")
    code, out, err = run_forked(*arguments, "--prompt=The ", config=None)
    expected = io.StringIO()
    generate.generate(workdir, b"The ", expected, number=20, seed=7)
    assert (code, out, told(err)) == (0, expected.getvalue(), [])
    for wrong, message in (
        (("--prompt=a", "--top_k=900"), "--top_k=900: expected at most 256"),
        (
            ("--prompt=a", "--config=configs/char_lm.py"),
            "--config: expected none in this mode, as the run folder has its own config",
        ),
        (("--prompt=a", "--mode=predict"), "--prompt is for --mode=generate, and --mode is predict"),
    ):
        code, out, err = run_forked(*arguments, *wrong, config=None)
        assert (code, out, len(told(err))) == (2, "", 1) and message in err


@pytest.mark.slow
def test_text_is_utf8_in_every_locale(workdir, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    arguments = ("--mode=generate", f"--workdir={workdir}", "--length=1", "--prompt=Τους")
    code, out, err = command.run(*arguments, config=None)
    assert (code, out[:4], told(err)) == (0, "Τους", [])


def test_a_run_of_another_task(rte_run):
    with pytest.raises(InputError, match="SentencePrediction: .*CausalLanguageModelling"):
        generate.generate(rte_run, b"a", io.StringIO())
