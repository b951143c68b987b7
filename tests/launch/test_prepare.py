"""Published sets made of small official files, and read by the configs; downloads are from a server on this machine."""

import dataclasses
import functools
import gzip
import http.server
import importlib.util
import re
import signal
import sys
import threading
from typing import ClassVar

import numpy as np
import pytest

from configs import bert, glue, nmt, translution
from posattn_jax.config import experiment
from posattn_jax.data.images import cifar, image_sets
from posattn_jax.data.official.sets import SETS
from posattn_jax.data.pipeline.data_set import Reading
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.system import checksums, command_line
from posattn_jax.system.errors import InputError
from tests.support import made_official
from tests.support.command import ROOT
from tests.support.made_text import sentences, translated, write_mnli, write_rte

WORDS = "one two three four five six seven eight nine ten"
ENGLISH = sentences(0, 60)
PAIRS = [(line, translated(line)) for line in ENGLISH]


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "launch" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def launcher():
    return load_script("prepare")


@pytest.fixture
def run(launcher, tmp_path, capsys):
    """Prepares a set of what is in `official` below `out`; returns the exit code and the lines that are told."""

    def run(name, *options):
        out = [] if name in ("cifar100", "imagenet64") else [f"--out={tmp_path / 'out'}"]
        arguments = ["prepare", name, str(tmp_path / "official"), *out, *options]
        code = command_line.run(launcher.main, arguments)
        told = capsys.readouterr()
        return code, told.out.splitlines(), [line for line in told.err.splitlines() if not line.endswith("...")]

    return run


@pytest.fixture
def publish(monkeypatch, tmp_path):
    """Takes what is in `official` for what is published of a set, at an address if there is one."""

    def publish(name, address=""):
        files = []
        for file in SETS[name].files:
            path = tmp_path / "official" / file.name
            digest = f"sha256:{checksums.of_file(path)}" if path.exists() else file.checksum
            url = f"{address}/{file.name}" if address else file.url
            files.append(dataclasses.replace(file, url=url, checksum=digest))
        monkeypatch.setitem(SETS, name, dataclasses.replace(SETS[name], files=tuple(files)))

    return publish


def load(config, tmp_path, **fields):
    """What the config reads of the folder."""
    config.data.update({"dir": str(tmp_path / "out")} | fields)
    data = experiment.data_set(config)
    return data, data.load(Reading(1, tmp_path / "cache", evaluates=True))


def lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_iwslt14(run, publish, tmp_path):
    """Tags are left out, and pairs of unlike or great length, by Moses' tokens; the five talks are the test set."""
    kept = [(german, english) for english, german in PAIRS]
    tagged = [("<url>http://talk</url>",) * 2, ("<keywords>cats</keywords>",) * 2, ("<talkid>1</talkid>",) * 2]
    tagged += [("<title>Die Katze</title>", "<title>The cat</title>")]
    tagged += [("<description>Ein  Hund, ja.</description>", "<description>A dog, yes.</description>")]
    apart = [("a b c d", "a b c d e f g"), ("a b c d e f g", "a b c d"), ("", "a"), ("a", "")]
    long = [("a " * 176, "b " * 176)]
    at_the_limits = [("a b c d", "a b c d e f"), ("a b, d", "a b c d e f"), ("a " * 175, "b " * 175)]
    tests = [(f"Rede {i} ’s", f"Talk {i} ’s") for i in range(5)]
    made_official.write_iwslt14(tmp_path / "official", [*tagged, *apart, *long, *at_the_limits, *kept], tests)
    publish("iwslt14")
    code, told, _ = run("iwslt14")
    expected = [("Die Katze", "The cat"), ("Ein Hund, ja.", "A dog, yes.")]
    expected += [(german.strip(), english.strip()) for german, english in at_the_limits] + kept
    out = tmp_path / "out"
    assert code == 0 and list(zip(lines(out / "train.de"), lines(out / "train.en"), strict=True)) == expected
    assert lines(out / "test.de") == [f"Rede {i} 's" for i in range(5)]
    assert lines(out / "test.en") == [f"Talk {i} 's" for i in range(5)]
    assert told[0] == "train: 65 pairs, where 167,522 are published"
    assert told[-1].startswith("python -m posattn_jax.main --config=configs/nmt.py:iwslt14")
    assert told[-1].endswith(f"--config.data.dir={out}")
    data, sources = load(nmt.get_config("iwslt14,tiny"), tmp_path, validation_part="train/23", buckets=(24, 400))
    assert sources["validation"].numbers.tolist() == [22, 45] and len(sources["train"]) == 63
    assert data.sentences(sources["test"], "test")[1][0] == "talk 0 's"


@pytest.mark.parametrize("target", ["de", "fr"])
def test_wmt14(run, publish, tmp_path, target):
    """Every line keeps its number; punctuation is normalised in training alone; the config leaves out the rest."""
    odd = [("He said “no”.\x07 Yes", "Il dit „non“ – oui"), ("", "vide"), (WORDS, "un"), ("a…", "b…")]
    unlike = [*PAIRS[:5], (WORDS, "dix"), *PAIRS[6:20]]  # the sixth is line 10
    corpora = [odd, unlike, PAIRS[20:40], PAIRS[40:50], PAIRS[50:]]
    made_official.write_wmt14(tmp_path / "official", target, corpora, [("It’s “so”.", "C’est „tel“."), *PAIRS])
    name = f"wmt14_en_{target}"
    publish(name)
    code, told, _ = run(name)
    out, number = tmp_path / "out", 40 if target == "de" else 60
    assert code == 0
    expected = [('He said "no." Yes', 'Il dit "non" - oui'), ("", "vide"), (WORDS, "un"), ("a...", "b...")]
    expected += [*unlike, *PAIRS[20:number]]
    assert list(zip(lines(out / "train.en"), lines(out / f"train.{target}"), strict=True)) == expected
    assert lines(out / f"newstest2014.{target}")[0] == "C'est „tel“."
    assert told[0] == "newstest2014: 61 pairs, where 3,003 are published"
    fields = {"malformed": "skip", "max_ratio": 1.5, "validation_part": "train/10", "buckets": (24, 200)}
    _, sources = load(nmt.get_config(f"wmt14_en_{target},tiny"), tmp_path, **fields)
    assert len(sources["test"]) == 61
    assert not {1, 2} & set(sources["train"].numbers) and {i % 10 for i in sources["validation"].numbers} == {9}
    _, all_of_them = load(nmt.get_config(f"wmt14_en_{target},tiny"), tmp_path, **fields | {"max_ratio": 0.0})
    for name, part in all_of_them.items():
        least, most = np.sort([part.source_lengths - 1, part.target_lengths - 1], axis=0)
        kept = part.numbers[(most <= 1.5 * least) | (name == "test")]
        assert sorted(sources[name].numbers) == sorted(kept) and (name == "test" or 0 < len(kept) < len(part))


def write_wmt18(folder):
    def members(stem, pairs, english="en", chinese="zh"):
        return {
            f"{stem}{language}": made_official.text([pair[side] for pair in pairs])
            for side, language in enumerate((english, chinese))
        }

    nc = "training-parallel-nc-v13/news-commentary-v13.zh-en."
    made_official.write_tar(folder / "training-parallel-nc-v13.tgz", members(nc, [("One “a”", "一“甲”\x07。")]))
    made_official.write_tar(folder / "UNv1.0.en-zh.tar.gz", members("./en-zh/UNv1.0.en-zh.", PAIRS))
    for name in ("casia2015", "casict2011", "casict2015", "datum2015", "datum2017", "neu2017"):
        books = members(f"{name}/B_", [(f"{name} b", "乙")], "en.txt", "cn.txt")
        books |= members(f"{name}/A_", [(f"{name} a", "甲")], "en.txt", "ch.txt")
        made_official.write_zip(folder / f"{name}.zip", books | {f"{name}/readme.txt": "no text"})
    test = "test/newstest2017-enzh-"
    segments = {f"{test}src.en.sgm": ["It’s"], f"{test}ref.zh.sgm": ["是"]}
    made_official.write_tar(
        folder / "test.tgz", {name: made_official.segments(lines) for name, lines in segments.items()}
    )


def test_wmt18(run, publish, tmp_path):
    write_wmt18(tmp_path / "official")
    publish("wmt18_en_zh")
    code, _, _ = run("wmt18_en_zh")
    english, chinese = (lines(tmp_path / "out" / f"train.{language}") for language in ("en", "zh"))
    assert code == 0 and len(english) == len(chinese) == 1 + 60 + 12
    assert (english[0], chinese[0]) == ("One “a”", "一“甲” 。")
    assert english[61:64] == ["casia2015 a", "casia2015 b", "casict2011 a"] and chinese[61:64] == ["甲", "乙", "甲"]
    config = nmt.get_config("wmt18_en_zh,tiny")
    _, sources = load(config, tmp_path, validation_part="train/10", source_vocabulary_size=50)
    assert len(sources["test"]) == 1 and len(sources["train"]) > 50


def test_what_is_missing_is_told_in_a_line_each(run, publish, tmp_path):
    write_wmt18(tmp_path / "official")
    for name in ("casia2015.zip", "UNv1.0.en-zh.tar.gz"):
        (tmp_path / "official" / name).unlink()
    publish("wmt18_en_zh")
    code, told, wrong = run("wmt18_en_zh")
    official = tmp_path / "official"
    assert code == 2 and not (tmp_path / "out").exists()
    tfds = "https://storage.googleapis.com/tfds-data/downloads/uncorpus/UNv1.0.en-zh.tar.gz"
    assert told == [
        f"{official}/UNv1.0.en-zh.tar.gz is missing: get it from {tfds}, or with --download",
        f"{official}/casia2015.zip is missing: http://nlp.nju.edu.cn/cwmt-wmt/ says how to get it",
    ]
    (line,) = wrong
    assert line.endswith("--partial leaves them out")
    code, told, _ = run("wmt18_en_zh", "--partial")
    assert code == 0 and len(lines(tmp_path / "out" / "train.en")) == 11
    assert "casict2011.zip" in told[-4] and "casia2015.zip" not in told[-4]


def test_wikitext103(run, publish, tmp_path):
    article = [
        "",
        " = Cats = ",
        "",
        f" {ENGLISH[0]} A well @-@ known cat , the first . It ran . ",
        " = = Life = = ",
        "",
    ]
    raw = made_official.text([*article, *(f" {line} " for line in ENGLISH), " = Dogs = ", *ENGLISH[:10]])
    members = {f"wikitext-103-raw/wiki.{part}.raw": raw for part in ("train", "valid", "test")}
    made_official.write_zip(tmp_path / "official" / "wikitext-103-raw-v1.zip", members)
    publish("wikitext103")
    code, told, _ = run("wikitext103")
    out = tmp_path / "out"
    first = [f"{ENGLISH[0]} A well-known cat , the first .", "It ran ."]
    assert code == 0 and lines(out / "train" / "wikitext103.txt") == [*first, *ENGLISH, "", *ENGLISH[:10], ""]
    fields = dict(option.removeprefix("--config.data.").split("=") for option in told[-1].split()[-2:])
    _, sources = load(bert.get_config("small,test"), tmp_path, **fields)
    assert len(sources["train"]) == len(sources["validation"]) == 36


def write_glue(folder):
    made = write_mnli(write_rte(folder.with_name("made")))
    for name in ("RTE", "MNLI"):
        members = {f"{name}/{path.name}": path.read_bytes() for path in (made / name).iterdir()}
        made_official.write_zip(folder / f"{name}.zip", members | {f"{name}/original/readme.txt": "no task"})
    rows = [[str(i % 2), f"{2 * i}", f"{2 * i + 1}", *PAIRS[i]] for i in range(20)]
    header = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    for name, some in (("train", rows), ("test", rows[:3])):
        text = made_official.text(["\t".join(row) for row in (header, *some)])
        (folder / f"msr_paraphrase_{name}.txt").write_text(text, encoding="utf-8-sig")
    (folder / "mrpc_dev_ids.tsv").write_text("2\t3\n10\t11\n")
    (folder / "AX.tsv").write_text("index\tsentence1\tsentence2\n0\tA cat.\tNo cat.\n")
    return rows


def test_glue(run, publish, tmp_path):
    rows = write_glue(tmp_path / "official")
    publish("glue")
    code, told, _ = run("glue")
    assert code == 2 and len(told) == 6 and "QNLIv2.zip is missing" in told[1]
    code, told, _ = run("glue", "--partial")
    out = tmp_path / "out"
    assert code == 0 and f"{out}/MRPC/dev.tsv: 3 lines" in told and not (out / "RTE" / "original").exists()
    kept = tmp_path / "pretrained"
    tokenizer.save(tokenizer.train(ENGLISH, 50), kept)
    for name, (num_train, num_dev, num_test) in {"rte": (24, 24, 21), "mrpc": (18, 2, 3), "mnli": (24, 29, 30)}.items():
        config = glue.get_config("tiny")
        config.data.update(name=name, dir=str(out))
        parts = experiment.data_set(config).load(Reading(1, tmp_path / "cache", evaluates=True, pretrained=kept))
        assert [len(parts[part]) for part in ("train", "validation", "unlabelled")] == [num_train, num_dev, num_test]
    assert lines(out / "MRPC" / "dev.tsv")[1:] == ["\t".join(rows[i]) for i in (1, 5)]
    assert lines(out / "MRPC" / "test.tsv")[0] == "index\t#1 ID\t#2 ID\t#1 String\t#2 String"
    assert lines(out / "MRPC" / "test.tsv")[3] == "\t".join(["2", *rows[2][1:]])


def test_cifar100(run, publish, tmp_path, monkeypatch):
    for part in ("train", "test"):
        monkeypatch.setitem(cifar.NUM_IMAGES, part, 20)
    record = np.random.default_rng(0).integers(0, 100, (20, 3074), np.uint8)
    members = {f"cifar-100-binary/{part}.bin": record.tobytes() for part in ("train", "test")}
    made_official.write_tar(tmp_path / "official" / "cifar-100-binary.tar.gz", members)
    publish("cifar100")
    code, told, _ = run("cifar100")
    assert code == 0 and told[0] == f"{tmp_path}/official: its official files are whole, and read as they are"
    assert told[1].endswith(f"--config.data.dir={tmp_path}/official") and not (tmp_path / "out").exists()
    _, sources = load(translution.get_config("cifar100,tiny"), tmp_path, dir=str(tmp_path / "official"))
    assert sources["train"].images.labels.tolist() == record[:, 1].tolist()
    _, _, told = run("cifar100", "--out=there")
    assert told == [
        "posattn_jax: error: --out=there: expected none: the official files of cifar100 are read as they are"
    ]


def test_imagenet64(run, publish, tmp_path, monkeypatch):
    rng, official = np.random.default_rng(0), tmp_path / "official"
    images, labels = rng.integers(0, 256, (7, 64, 64, 3), np.uint8), np.array([0, 999, 3, 3, 5, 6, 7])
    batches = {f"train_data_batch_{i}.npz": (images[[k]], labels[[k]]) for k, i in enumerate((1, 2, 10))}
    made_official.write_imagenet(official / "Imagenet64_train_part1_npz.zip", dict(reversed(batches.items())))
    for name, chosen in (("train_part2", slice(3, 5)), ("val", slice(5, 7))):
        batch = {"batch.npz": (images[chosen], labels[chosen])}
        made_official.write_imagenet(official / f"Imagenet64_{name}_npz.zip", batch)
    publish("imagenet64")
    code, told, _ = run("imagenet64")
    assert code == 0 and told[-1].endswith(f"--config.data.dir={official}")
    record = dataclasses.replace(image_sets.SETS["imagenet64"], num_images={"train": 5, "test": 2})
    monkeypatch.setitem(image_sets.SETS, "imagenet64", record)
    data, sources = load(translution.get_config("imagenet,tiny"), tmp_path, dir=str(official))
    assert len(data.classes) == 1000 and len(data.files()) == 3
    np.testing.assert_array_equal(sources["train"].images.images, images[:5])
    assert sources["train"].images.labels.tolist() == [0, 999, 3, 3, 5]
    np.testing.assert_array_equal(sources["validation"].images.images, images[5:])


class Handler(http.server.SimpleHTTPRequestHandler):
    """Sends files; while `stops` has something, half of one, and then does that."""

    stops: ClassVar[list] = []

    def copyfile(self, source, outputfile):
        content = source.read()
        if not self.stops:
            outputfile.write(content)
            return
        outputfile.write(content[: len(content) // 2])
        outputfile.flush()
        self.stops.pop()()

    def log_message(self, format, *arguments):
        pass


@pytest.fixture
def server(tmp_path):
    """The address of what is in `published`."""
    handler = functools.partial(Handler, directory=tmp_path / "published")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def published(publish, server, tmp_path):
    """IWSLT14's archive, on the server alone."""
    made_official.write_iwslt14(tmp_path / "official", [pair[::-1] for pair in PAIRS], PAIRS[:5])
    publish("iwslt14", server)
    (tmp_path / "official").rename(tmp_path / "published")
    return tmp_path / "published" / "de-en.tgz"


def test_downloads_what_is_missing(run, published, tmp_path):
    code, told, _ = run("iwslt14")
    assert code == 2 and "get it from http://127.0.0.1:" in told[0]
    assert run("iwslt14", "--download")[0] == 0
    assert (tmp_path / "official" / "de-en.tgz").read_bytes() == published.read_bytes()
    assert lines(tmp_path / "out" / "train.en") == ENGLISH
    published.unlink()
    (tmp_path / "official" / "de-en.tgz").unlink()  # what is made is there, and needs neither
    assert run("iwslt14", "--download")[0] == 0


@pytest.mark.parametrize("way", ["cut", "stopped"])
def test_a_download_that_stopped_begins_again(run, published, tmp_path, monkeypatch, way):
    has_ended = threading.Event()

    def interrupt():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        has_ended.wait(60)  # the rest of the file is still awaited when the signal comes

    monkeypatch.setattr(Handler, "stops", [{"cut": lambda: None, "stopped": interrupt}[way]])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    code, _, wrong = run("iwslt14", "--download")
    signal.signal(signal.SIGINT, before)
    has_ended.set()
    assert code == {"cut": 2, "stopped": 130}[way] and len([line for line in wrong if "error" in line]) <= 1
    assert not list((tmp_path / "official").iterdir()) and not (tmp_path / "out").exists()
    assert run("iwslt14", "--download")[0] == 0


def test_a_wrong_checksum_is_a_line(run, published, tmp_path):
    published.write_bytes(published.read_bytes()[:-1] + b"!")
    code, told, _ = run("iwslt14", "--download")
    assert code == 2 and len(told) == 1 and "cannot be downloaded" in told[0]
    assert not list((tmp_path / "official").iterdir())
    published.rename(tmp_path / "official" / "de-en.tgz")
    code, told, _ = run("iwslt14")
    assert code == 2 and len(told) == 1 and "de-en.tgz is damaged" in told[0]


def test_checksums_are_those_of_the_publishers(run, tmp_path):
    write_glue(tmp_path / "official")
    code, told, _ = run("glue", "--partial")
    assert code == 2 and len(told) == len(SETS["glue"].files)
    assert "not the official file (https://dl.fbaipublicfiles.com/glue/data/RTE.zip)" in told[4]
    for each in SETS.values():
        for file in each.files:
            algorithm, _, digest = file.checksum.partition(":")
            assert len(digest) == {"sha256": 64, "md5": 32, "": 0}[algorithm], file
            assert file.url.startswith("https://") != bool(file.page), file


def test_a_set_is_there_once_it_is_whole(run, publish, tmp_path, monkeypatch):
    made_official.write_iwslt14(tmp_path / "official", [pair[::-1] for pair in PAIRS], PAIRS[:5])
    publish("iwslt14")
    whole, out = SETS["iwslt14"], tmp_path / "out"

    def stopped(there, folder):
        whole.write(there, folder)
        raise KeyboardInterrupt

    monkeypatch.setitem(SETS, "iwslt14", dataclasses.replace(whole, write=stopped))
    assert run("iwslt14")[0] == 130 and sorted(path.name for path in tmp_path.iterdir()) == ["official"]
    monkeypatch.setitem(SETS, "iwslt14", whole)
    assert run("iwslt14")[0] == 0 and checksums.damage(out) is None
    (out / "train.de").write_text("mine\n")
    code, _, (line,) = run("iwslt14")
    assert code == 2 and "(train.de has changed" in line and line.endswith("move it away")
    assert (out / "train.de").read_text() == "mine\n"


def test_a_folder_of_yours_stays(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    code, _, (line,) = run("iwslt14")
    assert code == 2 and "(it has no SHA256SUMS): move it away" in line
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]
    code, _, (line,) = run("iwslt15")
    assert code == 2 and '"iwslt15": expected one of iwslt14' in line


def test_damaged_archives(run, publish, tmp_path):
    archive = tmp_path / "official" / "de-en.tgz"
    made_official.write_iwslt14(tmp_path / "official", [pair[::-1] for pair in PAIRS], PAIRS[:5])
    whole = archive.read_bytes()
    for content, told in ((whole[: len(whole) // 2], "cannot be read at"), (b"no archive", "cannot be read at")):
        archive.write_bytes(content)
        code, _, wrong = run("iwslt14")
        assert code == 2 and told in wrong[-1] and str(archive) in wrong[-1]
    members = {f"de-en/train.tags.de-en.{language}": "one\n" for language in ("de", "en")}
    made_official.write_tar(archive, members | {"de-en/train.tags.de-en.de": "one\ntwo\n"})
    code, _, wrong = run("iwslt14")
    assert code == 2 and "train.tags.de-en.en have not as many lines" in wrong[-1]
    made_official.write_tar(archive, members)
    assert "IWSLT14.TED.dev2010.de-en.de.xml" in run("iwslt14")[2][-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["iwslt14", "wmt14_en_de", "wmt14_en_fr"])
def test_a_set_is_not_downloaded_without_the_library_that_cleans_it(launcher, tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    monkeypatch.setattr(launcher, "official_files", None)
    with pytest.raises(InputError, match=r"^sacremoses .*posattn_jax\[nlp\]"):
        launcher.prepare(name, tmp_path, tmp_path / "out", download=True)


@pytest.mark.parametrize(
    "error, told",
    [(OSError(28, "No space left on device"), "No space left on device"), (gzip.BadGzipFile("CRC fails"), "CRC fails")],
)
def test_an_error_without_a_file_names_the_set(launcher, tmp_path, monkeypatch, capsys, error, told):
    def fail(*_):
        raise error

    monkeypatch.setattr(launcher, "prepare", fail)
    assert command_line.run(launcher.main, ["prepare", "glue", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"posattn_jax: error: data/glue: {told}\n"


@pytest.mark.parametrize(
    "name, content, told",
    [
        ("multi30k/train.en.gz", gzip.compress(b"a" * 99, mtime=0)[:-9], "cannot be read .Compressed file ended"),
        ("multi30k/train.en.gz", b"a" * 99, "cannot be read .Not a gzipped file"),
        ("multi30k/train.en.gz", gzip.compress(b"\xff", mtime=0), "cannot be read .'utf-8' codec"),
        ("tatoeba-deu-eng/deu-eng.zip", b"a" * 99, "cannot be read .File is not a zip file"),
        ("tatoeba-deu-eng/deu-eng.zip", None, "no item named 'deu.txt'"),
    ],
)
def test_english_text_of_a_damaged_file(tmp_path, capsys, name, content, told):
    path = tmp_path / name
    path.parent.mkdir()
    made_official.write_zip(tmp_path / "tatoeba-deu-eng" / "deu-eng.zip", {"deu.txt": "One.\tEins.\n"})
    if content is None:
        made_official.write_zip(path, {"eng.txt": "One.\tEins.\n"})
    else:
        path.write_bytes(content)
    script = load_script("english_text")
    assert command_line.run(script.main, ["english_text", str(tmp_path), str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"posattn_jax: error: {re.escape(str(path))}: .*{told}", line), line
    assert not (tmp_path / "out").exists()
