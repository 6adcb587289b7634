"""The files from which a gateway turns text into tokens and back, and whether it can. Owns their names;
what they mean is the native core's, which loads them here as a worker does before it serves.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from inflight.errors import CheckpointError, Problem
from inflight.model.files import check_inside, config_path

#: What turns text into tokens and back, and ends a sequence; those that exist travel with a build.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "qwen.tiktoken",
    "tiktoken.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)

#: Any of these makes a tokenizer.
TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "qwen.tiktoken",
    "tiktoken.model",
    "vocab.json",
)
#: What `tokenizer.json` is made of where there is none.
SOURCES = (*TOKENIZERS[1:], "merges.txt", "added_tokens.json")
#: For users who have none of them.
NO_TOKENIZER = (
    "copy the checkpoint's `tokenizer.json` there, its `tokenizer.model`, or its `vocab.json` and"
    " `merges.txt`"
)

#: What a gateway needs; those that exist are sent.
ASSET_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
    "special_tokens_map.json",
)


def read_assets(directory: Path) -> dict[str, bytes]:
    """The asset files by name; `tokenizer.json` is made of other files where there is none.

    Raises `CheckpointError` where one is a link to a file outside `directory`, or cannot be converted.
    """
    assets = _read(directory, ASSET_FILES)
    if "tokenizer.json" not in assets:
        made = _made(directory)
        if made is not None:
            assets["tokenizer.json"] = made
    return assets


def tokenizer_json(directory: Path) -> bytes | None:
    """What `tokenizer.json` contains, or would; None: there is no tokenizer. Raises as `read_assets`."""
    own = _read(directory, ("tokenizer.json",)).get("tokenizer.json")
    return _made(directory) if own is None else own


def has_tokenizer(directory: Path) -> bool:
    """Whether `directory` has the files of one; what they contain is not looked at."""
    if any((directory / name).is_file() for name in TOKENIZERS if name != "vocab.json"):
        return True
    return all((directory / name).is_file() for name in ("vocab.json", "merges.txt"))


def _read(directory: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    paths = {name: directory / name for name in names}
    if "config.json" in paths:
        paths["config.json"] = config_path(directory)
    found = {name: path for name, path in paths.items() if path.is_file()}
    for path in found.values():
        check_inside(directory, path)
    return {name: path.read_bytes() for name, path in found.items()}


def _made(directory: Path) -> bytes | None:
    """`tokenizer.json` from the other files: converted once, then from the user's cache."""
    if not has_tokenizer(directory):
        return None
    from inflight import _native

    files = _read(directory, (*SOURCES, *ASSET_FILES))
    digest = hashlib.sha256(_native.__version__.encode())
    for name in sorted(files):
        digest.update(f"\0{name}\0{len(files[name])}\0".encode() + files[name])
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cached = base / "inflight" / "tokenizers" / f"{digest.hexdigest()}.json"
    try:
        return cached.read_bytes()
    except OSError:
        pass
    try:
        made = _native.convert_tokenizer(files)
    except ValueError as error:
        raise CheckpointError(
            f"the tokenizer of `{directory}` cannot be used: {error}",
            "save one with `AutoTokenizer.from_pretrained(...).save_pretrained(...)`, and copy its"
            " `tokenizer.json` there",
        ) from error
    # A cache that cannot be written costs time only.
    with contextlib.suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cached.parent, delete=False) as file:
            file.write(made)
        Path(file.name).replace(cached)
    return made


def check_tokenizer(directory: Path) -> Problem | None:
    """Why no worker can serve `directory`, whatever its executor; None: its tokenizer loads."""
    if not has_tokenizer(directory):
        return Problem(
            f"`{directory}` has no `tokenizer.json`, and nothing can be tokenized without it", NO_TOKENIZER
        )
    from inflight import _native

    try:
        _native.Tokenizer(read_assets(directory))
    except CheckpointError as error:
        return Problem(error.what, error.remedy or "")
    except ValueError as error:
        return Problem(
            f"the model `{directory}` cannot be served: {error}", "copy or download the checkpoint again"
        )
    return None
