"""What xgrammar must know of a tokenizer to hold an engine to a guide. Owns where it is found.

The PyTorch runtime loads the tokenizer by itself; engines get the vocabulary in their configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.model.files import load_json, parse_json
from inflight.model.tokenizer import tokenizer_json

_KEYWORDS = ("encoded_vocab", "tokenizer_str", "stop_token_ids")
#: Where a checkpoint says which tokens end a text, the most particular first.
_END_FILES = ("generation_config.json", "checkpoint_config.json", "config.json")
_REMEDY = "pass the file of Triton's `generate_xgrammar_tokenizer_info.py` as `xgrammar_tokenizer_info_path`"


def read_tokenizer_info(directory: Path, path: str | None) -> dict[str, Any]:
    """Keywords of `GuidedDecodingConfig`: the file of `xgrammar_tokenizer_info_path`, else what
    `tokenizer.json` in `directory` says. Errors: `UserMistake` where neither will do.
    """
    if path is None:
        return _from_tokenizer(directory)
    try:
        info = load_json(Path(path))
        return {name: info[name] for name in _KEYWORDS}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserMistake(
            f"`xgrammar_tokenizer_info_path` is `{path}`, which cannot be used: {error!r}",
            "pass a JSON file with `encoded_vocab`, `tokenizer_str` and `stop_token_ids`",
        ) from error


def _from_tokenizer(directory: Path) -> dict[str, Any]:
    path = directory / "tokenizer.json"
    try:
        content = tokenizer_json(directory)
        text = path.read_text(encoding="utf-8") if content is None else content.decode("utf-8")
        tokenizer = parse_json(text)
        vocab = _vocabulary(tokenizer)
        ends = _ends(directory, vocab)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserMistake(
            f"`{path}` does not specify how tokens are spelled, which xgrammar needs: {error!r}", _REMEDY
        ) from error
    if not ends:
        raise UserMistake(f"nothing in `{directory}` says which token ends a text", _REMEDY)
    # Ids that no token has are held for special ones.
    encoded = [""] * (max(vocab.values()) + 1)
    for token, number in vocab.items():
        encoded[number] = token
    return {"encoded_vocab": encoded, "tokenizer_str": text, "stop_token_ids": ends}


def _vocabulary(tokenizer: dict[str, Any]) -> dict[str, int]:
    """Token -> id, added tokens included."""
    held = tokenizer["model"]["vocab"]
    # Unigram models list (token, score) pairs, in the order of their ids.
    pairs = held.items() if isinstance(held, dict) else ((entry[0], at) for at, entry in enumerate(held))
    vocab = {str(token): int(number) for token, number in pairs}
    vocab |= {str(added["content"]): int(added["id"]) for added in tokenizer.get("added_tokens") or ()}
    if not vocab or min(vocab.values()) < 0 or max(vocab.values()) > 16 * len(vocab):
        raise ValueError("its vocabulary is empty or its ids are invalid")
    return vocab


def _ends(directory: Path, vocab: dict[str, int]) -> list[int]:
    for name in _END_FILES:
        path = directory / name
        if not path.is_file():
            continue
        held = load_json(path).get("eos_token_id")
        if held is not None:
            return [int(end) for end in (held if isinstance(held, list) else [held])]
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return []
    token = load_json(path).get("eos_token")
    # Older files keep the token as an object.
    content = token.get("content") if isinstance(token, dict) else token
    return [vocab[content]] if content in vocab else []
