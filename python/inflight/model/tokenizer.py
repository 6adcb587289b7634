"""The files from which a gateway turns text into tokens and back, and whether it can. Owns their names;
what they mean is the native core's, which loads them here as a worker does before it serves.
"""

from __future__ import annotations

from pathlib import Path

from inflight.errors import Problem
from inflight.model.files import check_inside, config_path

#: What turns text into tokens and back, and ends a sequence; those that exist travel with a build.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)

#: Any of these makes a tokenizer.
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json")

#: What a gateway needs; those that exist are sent.
ASSET_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "config.json",
    "special_tokens_map.json",
)


def read_assets(directory: Path) -> dict[str, bytes]:
    """The asset files by name. Raises `CheckpointError` where one is a link to a file outside `directory`."""
    paths = {name: directory / name for name in ASSET_FILES}
    paths["config.json"] = config_path(directory)
    found = {name: path for name, path in paths.items() if path.is_file()}
    for path in found.values():
        check_inside(directory, path)
    return {name: path.read_bytes() for name, path in found.items()}


def check_tokenizer(directory: Path) -> Problem | None:
    """Why no worker can serve `directory`, whatever its executor; None: its tokenizer loads."""
    if not (directory / "tokenizer.json").is_file():
        return Problem(
            f"`{directory}` has no `tokenizer.json`, and nothing can be tokenized without it",
            "copy the checkpoint's `tokenizer.json` there, or create one with"
            " `AutoTokenizer.from_pretrained(...)`",
        )
    from inflight import _native

    try:
        _native.Tokenizer(read_assets(directory))
    except ValueError as error:
        return Problem(
            f"the model `{directory}` cannot be served: {error}", "copy or download the checkpoint again"
        )
    return None
