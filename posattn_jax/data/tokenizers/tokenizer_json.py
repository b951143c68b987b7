"""Tokenizers of others: a tokenizer.json of the library `tokenizers`, or the vocab.txt of a BERT."""

import pathlib

import numpy as np

from posattn_jax.data.tokenizers.tokenizer import JSON_FILE, SPECIAL_NAMES, Specials, Tokenizer, read
from posattn_jax.system import extras
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json

VOCABULARY_FILE = "vocab.txt"


class JsonTokenizer(Tokenizer):
    """The tokenizer of a tokenizer.json. Raises ValueError if it does not have the special tokens of a BERT."""

    file, what, id_offset = JSON_FILE, "tokenizer of a BERT", 0

    def __init__(self, model: bytes):
        super().__init__(model)
        try:
            self._tokenizer = _tokenizers().Tokenizer.from_str(model.decode())
        except InputError:
            raise
        except Exception as error:  # the library raises no more specific class
            raise ValueError(str(error)) from error
        self._tokenizer.no_padding()  # `data.text.sequences` pads and cuts
        self._tokenizer.no_truncation()
        ids = {name: self._tokenizer.token_to_id(name) for name in SPECIAL_NAMES}
        missing = [name for name, own in ids.items() if own is None]
        if missing:
            raise ValueError(f"it has no {', '.join(missing)}")
        self.specials = Specials(*ids.values())
        self.vocabulary_size = self._tokenizer.get_vocab_size()

    def _encode(self, sentences: list[str]) -> list[np.ndarray]:
        encoded = self._tokenizer.encode_batch(sentences, add_special_tokens=False)
        return [np.array(each.ids, np.int32) for each in encoded]

    def decode(self, ids: np.ndarray) -> str:
        return self._tokenizer.decode(ids.tolist(), skip_special_tokens=True)

    def pieces(self, ids: np.ndarray) -> list[str]:
        return [str(self._tokenizer.id_to_token(i)) for i in ids.tolist()]

    def _begins_word(self, piece: str) -> bool:
        return not piece.startswith("##")


def of_folder(folder: pathlib.Path) -> Tokenizer:
    """The tokenizer in the folder of a model. Raises InputError if there is none."""
    if (folder / JSON_FILE).exists():
        return read(folder / JSON_FILE)
    path = folder / VOCABULARY_FILE
    if not path.exists():
        raise InputError(f"{folder}: no tokenizer there: expected {JSON_FILE} or {VOCABULARY_FILE}")
    try:
        return of_vocabulary(path.read_text(encoding="utf-8"), read_json(folder / "tokenizer_config.json") or {})
    except ValueError as error:
        raise InputError(f"{path}: no vocabulary of a BERT ({error})") from error


def of_vocabulary(text: str, options: dict) -> JsonTokenizer:
    """The tokenizer of a vocab.txt, which has one word piece per line (Devlin 2019).

    Args:
      text: the content of vocab.txt.
      options: the content of tokenizer_config.json: do_lower_case, strip_accents and tokenize_chinese_chars.

    Raises:
      ValueError: it does not have the special tokens of a BERT.
    """
    pieces = text.removesuffix("\n").split("\n")  # pieces may be other ends of lines, such as U+2028
    missing = [name for name in (*SPECIAL_NAMES, "[UNK]") if name not in pieces]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    made = _tokenizers().BertWordPieceTokenizer(
        vocab={piece: number for number, piece in enumerate(pieces)},
        lowercase=options.get("do_lower_case", True),
        strip_accents=options.get("strip_accents"),
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
    )
    return JsonTokenizer(made.to_str(pretty=True).encode())


def _tokenizers():
    with extras.named():
        import tokenizers
    return tokenizers
