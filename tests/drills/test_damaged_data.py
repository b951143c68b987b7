"""Every data file damaged in every way, before a run begins and before it goes on: what the user is told."""

import collections
import pathlib

import pytest

from configs import bert, digits, glue, nmt
from posattn_jax.config import experiment
from posattn_jax.data.pipeline import checksums
from posattn_jax.data.text import text_files
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.system.errors import InputError
from tests.drills.damages import DAMAGES
from tests.drills.test_damaged_checkpoints import tell
from tests.support import made_data
from tests.support.made_text import LANGUAGES, write_parallel, write_rte, write_text


def images(folder, name, write, **fields):
    write(folder, **fields)
    config = digits.get_config("tiny")
    config.data.update(name=name, dir=str(folder))
    return config


def text(folder):
    write_text(folder / "text")
    config = bert.get_config("tiny,test")
    config.data.dir, config.cache_dir = str(folder / "text"), str(folder / "cache")
    return config


def parallel(folder):
    write_parallel(folder / "text")
    config = nmt.get_config("multi30k,tiny")
    config.data.update(dir=str(folder / "text"), test_part="test")
    config.cache_dir = str(folder / "cache")
    config.data.update(source=LANGUAGES[0], target=LANGUAGES[1], buckets=(72,))
    return config


def sentences(folder):
    write_rte(folder / "glue")
    bert = text(folder)
    bert.data.length = glue.get_config("tiny").data.length
    files = sorted((folder / "text").iterdir())
    tokenizer.save(
        tokenizer.of_text(text_files.lines(files), files, bert.data.vocabulary_size, folder / "cache"), folder / "run"
    )
    config = glue.get_config("tiny")
    config.data.update(name="rte", dir=str(folder / "glue"))
    return config


SETS = {
    "mnist, gzipped": lambda folder: images(folder, "mnist", made_data.write_mnist),
    "mnist, plain": lambda folder: images(folder, "mnist", made_data.write_mnist, suffix=""),
    "cifar10, binary": lambda folder: images(folder, "cifar10", made_data.write_binary),
    "cifar10, python": lambda folder: images(folder, "cifar10", made_data.write_python),
    "text": text,
    "glue": sentences,
    "parallel text": parallel,
}
FAST = ("mnist, plain", "glue")


def outcome(config, run, caplog, path: pathlib.Path) -> str:
    """How a start is met: "refused" in one line that names the file or what it misses, "told" in one, or "nothing"."""
    caplog.clear()
    try:
        checksums.check(experiment.data_set(config).files(), run)
        experiment.load_sources(config, workdir=run)
    except InputError as error:
        said = str(error)
        one_line = len(said.splitlines()) == 1 and path.name.removesuffix(".gz") in said
        return "refused" if one_line else "refused without its name"
    told = [record.getMessage() for record in caplog.records if record.name.startswith("posattn")]
    return "told" if any(str(path) in each for each in told) else "nothing"


@pytest.mark.parametrize(
    "name", [each if each in FAST else pytest.param(each, marks=pytest.mark.slow) for each in SETS]
)
def test_every_file_in_every_way(tmp_path, caplog, name):
    """A run that goes on never does so with a file that has changed; one that begins knows what it can."""
    config, run = SETS[name](tmp_path), tmp_path / "run"
    files = experiment.data_set(config).files()
    chosen = list(files.values())[:: 3 if name.startswith("cifar10") else 1]  # of 31 megabytes each
    assert outcome(config, run, caplog, tmp_path) in ("nothing", "told")
    counts = collections.defaultdict(collections.Counter)
    for begins in (True, False):
        if not begins:
            checksums.save(files, run)
        for damage in DAMAGES:
            for path in chosen:
                content = path.read_bytes()
                damage(path)
                found = outcome(config, run, caplog, path)
                path.write_bytes(content)
                counts[f"{damage.__name__}, {'begins' if begins else 'goes on'}"].update({"tried": 1, found: 1})
                if not begins:
                    assert found == "refused", (damage.__name__, path)
    tell(name, counts)
