"""Tokenizers of others, against what transformers makes of sentences: see tests/support/make_hugging_face.py."""

import json
import pathlib
import shutil
import sys

import numpy as np
import pytest

from posattn_jax.data.text import sequences
from posattn_jax.data.tokenizers import tokenizer, tokenizer_json
from posattn_jax.data.tokenizers.tokenizer import Specials
from posattn_jax.system.errors import InputError

pytest.importorskip("tokenizers")  # of the extra "convert", and of "test"
MADE = pathlib.Path(__file__).parents[2] / "convert" / "made" / "bert"
PAIRS = [line.split("\t") for line in (MADE / "pairs.tsv").read_text().splitlines()]
FILES = ("tokenizer.json", "vocab.txt")


@pytest.fixture(params=FILES)
def subwords(request, tmp_path):
    """From either file."""
    shutil.copy(MADE / request.param, tmp_path)
    return tokenizer_json.of_folder(tmp_path)


def test_pairs_are_those_of_transformers(subwords):
    """Upper case, an accent that is a character of its own, a Chinese character, an unknown word; and padding."""
    batch = sequences.lay_out([[subwords.encode(pair)] for pair in PAIRS], 14, subwords.specials)
    with np.load(MADE / "inputs.npz") as expected:
        np.testing.assert_array_equal(batch["tokens"], expected["input_ids"])
        np.testing.assert_array_equal(batch["segments"], expected["token_type_ids"])
        np.testing.assert_array_equal(batch["tokens"] != subwords.specials.pad, expected["attention_mask"])
    assert subwords.specials == Specials(pad=0, cls=3, sep=4, mask=5) and subwords.num_special == 6
    known = sequences.Sentences([], np.zeros(0), np.zeros(0), 14, subwords).knows
    assert (known["mask_id"], known["pad_id"], known["vocabulary_size"]) == (5, 0, 38)


def test_pieces_and_text(subwords):
    (ids,) = subwords.encode(["The cat sees NO dog."])
    assert " ".join(subwords.pieces(np.array([3, *ids, 4]))) == "[CLS] the cat see ##s no dog . [SEP]"
    assert subwords.decode(np.array([3, *ids, 4, 0])) == "the cat sees no dog."
    assert subwords.begins_word[[3, *ids, 4]].tolist() == [False, False, True, True, False, True, True, True, False]


def test_a_run_keeps_it(subwords, tmp_path):
    tokenizer.save(subwords, tmp_path / "run")
    kept = tokenizer.of_run(tmp_path / "run")
    assert kept.sha256 == subwords.sha256
    np.testing.assert_array_equal(kept.encode(["a ship"])[0], subwords.encode(["a ship"])[0])
    assert (tmp_path / "run" / "tokenizer.sha256").read_text() == f"{subwords.sha256}  tokenizer.json\n"
    (tmp_path / "run" / "tokenizer.json").write_text((MADE / "tokenizer.json").read_text() + "\n")
    with pytest.raises(InputError, match=r"not the tokenizer of this run"):
        tokenizer.of_run(tmp_path / "run")


def test_upper_case_is_kept_where_the_config_says_so(tmp_path):
    shutil.copy(MADE / "vocab.txt", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    subwords = tokenizer_json.of_folder(tmp_path)
    assert [subwords.pieces(ids) for ids in subwords.encode(["the", "The"])] == [["the"], ["[UNK]"]]


def test_a_piece_may_be_another_end_of_a_line(tmp_path):
    """U+2028, U+0085 and others: the ids of the pieces after it stay."""
    pieces = (MADE / "vocab.txt").read_text().split("\n")
    pieces.insert(7, "\u2028")
    pieces.insert(9, "\x85")
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    (ids,) = tokenizer_json.of_folder(tmp_path).encode(["the mountain"])
    assert ids.tolist() == [pieces.index("the"), pieces.index("mountain")]


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("other.txt", "", "expected tokenizer.json or vocab.txt"),
        (
            "vocab.txt",
            "[PAD]\n[UNK]\n[CLS]\nthe\n",
            r"vocab.txt: .*\[SEP\], \[MASK\]",
        ),
        ("tokenizer.json", "{}", "tokenizer.json: .*can be read there"),
        ("tokenizer.json", None, r"tokenizer.json: .*\[CLS\]"),
    ],
)
def test_no_tokenizer_of_a_bert(tmp_path, name, text, message):
    text = (MADE / name).read_text().replace("[CLS]", "[BEGIN]") if text is None else text
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        tokenizer_json.of_folder(tmp_path)


def test_the_library_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"pip install posattn_jax\[convert\]"):
        tokenizer_json.of_folder(MADE)
