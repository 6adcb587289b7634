"""The files next to weights or an engine: tokenizer, configs, links.

Functions here are steps of a plan (`steps.Own`): paths in, files out, the same bytes for the same input.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.model.checkpoint import read_config
from inflight.model.files import ARGUMENTS_FILE, CHECKPOINT_CONFIG, check_inside, write_json
from inflight.model.shards import INDEX, find_shards
from inflight.model.tokenizer import TOKENIZER_FILES, tokenizer_json

#: What a model's processor of images and videos reads.
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def _copy_tokenizer(source: Path, result: Path) -> None:
    result.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            check_inside(source, source / name)
            shutil.copyfile(source / name, result / name)
    if not (result / "tokenizer.json").is_file():
        made = tokenizer_json(source)
        if made is not None:
            (result / "tokenizer.json").write_bytes(made)


def copy_for_engine(source: str, result: str) -> None:
    """Tokenizer files, and the checkpoint's config under another name than the engine's."""
    _copy_tokenizer(Path(source), Path(result))
    shutil.copyfile(Path(source) / "config.json", Path(result) / CHECKPOINT_CONFIG)


def copy_for_reference(source: str, result: str) -> None:
    """Tokenizer files, what prepares images, and the config with the precision that the weights now have."""
    _copy_tokenizer(Path(source), Path(result))
    for name in PROCESSOR_FILES:
        if (Path(source) / name).is_file():
            check_inside(Path(source), Path(source) / name)
            shutil.copyfile(Path(source) / name, Path(result) / name)
    config = dict(read_config(Path(source)))
    for key in ("dtype", "torch_dtype"):
        if key in config:
            config[key] = "float32"
    write_json(Path(result) / "config.json", config)


def link_checkpoint(source: str, result: str, arguments: Mapping[str, Any]) -> None:
    """Links to the weights, which are not copied, copies of the small files, and the arguments of `LLM`."""
    origin, target = Path(source).resolve(), Path(result)
    _copy_tokenizer(origin, target)
    for shard in find_shards(origin):
        link = target / shard.path.name
        link.unlink(missing_ok=True)
        link.symlink_to(shard.path.resolve())
    names = ["config.json", INDEX, "hf_quant_config.json", *PROCESSOR_FILES]
    if arguments.get("trust_remote_code"):
        names += sorted(path.name for path in origin.glob("*.py"))
    for name in names:
        if (origin / name).is_file():
            check_inside(origin, origin / name)
            shutil.copyfile(origin / name, target / name)
    written = dict(arguments)
    draft = written.get("speculative_config", {}).get("speculative_model")
    if draft is not None:
        # A worker runs in another directory.
        resolved = str(Path(draft).resolve())
        written["speculative_config"] = {**written["speculative_config"], "speculative_model": resolved}
    try:
        write_json(target / ARGUMENTS_FILE, written)
    except TypeError as error:
        raise UserMistake(f"an option has no JSON form: {error}", "pass plain values") from error
