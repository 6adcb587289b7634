"""Fixtures as checkpoints that are served: their files, with a tokenizer that has a token for each letter."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from .support import FIXTURES

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,?!"


def copy_fixture(name: str, folder: Path, *without: str) -> None:
    """A fixture's files, ``without`` some."""
    shutil.copytree(FIXTURES / name, folder, ignore=shutil.ignore_patterns(*without))


def write_tokenizer(
    folder: Path, names: Sequence[str], special: Sequence[str], whole: Sequence[str] = ()
) -> None:
    """The `tokenizer.json` of these tokens, in the order of their ids, of which some are ``special``, and
    some found ``whole`` in a text and not special. The first is that of unknown letters."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    vocabulary = {name: place for place, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=names[0]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    tokenizer.add_tokens([AddedToken(name, special=False) for name in whole])
    tokenizer.save(str(folder / "tokenizer.json"))
