"""The tokenizer of another model: its tokenizer.json, of the library `tokenizers`, or the vocab.txt of a BERT."""

import pathlib

from posattn_jax.data.tokenizers.tokenizer import JSON_FILE, SPECIAL_NAMES, JsonTokenizer, Tokenizer, read
from posattn_jax.system import extras
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json

VOCABULARY_FILE = "vocab.txt"


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
    with extras.named():
        import tokenizers

    pieces = text.removesuffix("\n").split("\n")  # pieces may be other ends of lines, such as U+2028
    missing = [name for name in (*SPECIAL_NAMES, "[UNK]") if name not in pieces]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    made = tokenizers.BertWordPieceTokenizer(
        vocab={piece: number for number, piece in enumerate(pieces)},
        lowercase=options.get("do_lower_case", True),
        strip_accents=options.get("strip_accents"),
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
    )
    return JsonTokenizer(made.to_str(pretty=True).encode())
