"""Sentences, and which word each of their tokens is part of."""

import dataclasses

import numpy as np
import pytest

from posattn_jax.data.pipeline.data_set import Reading
from posattn_jax.data.text.words import Words
from posattn_jax.data.tokenizers import tokenizer, tokenizer_json
from posattn_jax.data.tokenizers.tokenizer import CLS, PAD, SEP, SPECIALS
from posattn_jax.system.errors import InputError
from tests.support.made_text import sentences, write_text

KEPT = ["Alas, the cat sees no dog.", "a stone, a ship and a garden"]
LEFT_OUT = ["The cat sees.", "no no no no no dog.", "sees a a sees a bird", "alone"]


@pytest.fixture(scope="module")
def subwords():
    return tokenizer.train([*sentences(0, 300), *KEPT, *LEFT_OUT], 60)


def of_lines(folder, subwords, text, length=40):
    """The source of a text."""
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text("\n".join(text), encoding="utf-8")
    data = Words(str(folder / "text"), vocabulary_size=subwords.vocabulary_size, length=length)
    return data.read([folder / "text" / "a.txt"], subwords, folder / "cache")


def words_of(line, subwords):
    """The ids of each word, tokenised alone."""
    return [ids.tolist() for ids in subwords.encode(line.split())]


def test_a_words_pieces_are_those_of_the_word_alone(subwords):
    """So to move words and to move their pieces together are one."""
    rng = np.random.default_rng(0)
    for line in (*KEPT, *LEFT_OUT, *sentences(1, 20)):
        moved = rng.permutation(line.split())
        (ids,) = subwords.encode([" ".join(moved)])
        assert ids.tolist() == [each for word in words_of(" ".join(moved), subwords) for each in word]
        assert subwords.begins_word[ids].sum() == len(moved)
    assert subwords.begins_word.shape == (60,) and not subwords.begins_word[list(SPECIALS)].any()


def test_with_the_tokenizer_of_a_bert_punctuation_marks_are_words():
    """And here too, a moved word has the pieces that it has alone."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "sail", "##or", "##s", "isn", "'", "t", ",", "."]
    subwords = tokenizer_json.of_vocabulary("\n".join(vocabulary), {})
    (ids,) = subwords.encode(["The sailor isn't, the sails."])
    words = np.split(ids, np.flatnonzero(subwords.begins_word[ids])[1:])
    found = " ".join("".join(subwords.pieces(word)) for word in words)
    assert found == "the sail##or isn ' t , the sail##s ."
    moved = np.concatenate([words[place] for place in (5, 7, 3, 1, 0, 6, 4, 2, 8)])
    np.testing.assert_array_equal(subwords.encode([", sails ' sailor the the t isn."])[0], moved)


def test_words_of_every_token(tmp_path, subwords, capsys):
    """Of the sentences that have three different words before the last, upper case or lower; others are counted."""
    source = of_lines(tmp_path, subwords, [KEPT[0], *LEFT_OUT, "", KEPT[1]])
    assert "4 of 6 sentences have fewer than 3 different words" in (capsys.readouterr().out)
    assert len(source) == 2 and source.num_cut == 0
    for number, line in enumerate(KEPT):
        batch, tokens, words = source.batch(np.array([number])), [CLS], [0]
        for word, ids in enumerate(words_of(line, subwords), start=1):
            tokens += ids
            words += [word] * len(ids)
        num_after = 40 - len(tokens)
        assert batch["tokens"][0].tolist() == [*tokens, SEP] + [PAD] * (num_after - 1)
        assert batch["words"][0].tolist() == words + [len(line.split())] * num_after
        assert batch["ids"] == number and not batch["segments"].any()
    (other,) = source.select(np.array([1])).batch(np.array([0]))["tokens"]
    np.testing.assert_array_equal(other, source.batch(np.array([1]))["tokens"][0])


def test_what_is_cut_has_three_words_before_the_last(tmp_path, subwords):
    """In the pieces that there is room for."""
    words = words_of(KEPT[0], subwords)
    enough = 2 + sum(map(len, words[:3])) + 1  # a piece of the fourth
    source = of_lines(tmp_path, subwords, [KEPT[0]], length=enough)
    assert source.num_cut == 1 and source.batch(np.array([0]))["words"][0, -1] == 4
    data = Words(str(tmp_path / "text"), vocabulary_size=60, length=enough - 1)
    with pytest.raises(InputError, match=r"a.txt: all 1 sentences .*3 different words"):
        data.read([tmp_path / "text" / "a.txt"], subwords, tmp_path / "cache")


def test_load_splits_by_seed_and_reads_again_what_is_cached(tmp_path, capsys):
    data = Words(str(write_text(tmp_path / "text")), vocabulary_size=50, length=30)
    first, again, other = (data.load(Reading(seed, tmp_path / "cache")) for seed in (1, 1, 2))
    assert capsys.readouterr().err.count("tokenising 2 files") == 1
    assert (len(first["train"]), len(first["validation"])) == (570, 30)
    np.testing.assert_array_equal(first["validation"].numbers, again["validation"].numbers)
    assert (first["validation"].numbers != other["validation"].numbers).any()
    held_out = dataclasses.replace(data, validation_dir=str(write_text(tmp_path / "other", 40)), validation_limit=50)
    sources = held_out.load(Reading(1, tmp_path / "cache"))
    assert (len(sources["train"]), len(sources["validation"])) == (600, 50)
    assert data.files().keys() == {"data.dir/a.txt", "data.dir/b.txt"}


def test_a_single_sentence_cannot_be_split(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join([KEPT[0], *LEFT_OUT * 9]))
    data = Words(str(tmp_path), vocabulary_size=26, length=40)
    with pytest.raises(InputError, match=f"^data.dir={tmp_path}: .*2 sentences"):
        data.load(Reading(1, tmp_path / "cache"))
