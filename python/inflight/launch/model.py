"""Resolves MODEL and reads the files that gateways fetch. Knows file names; reads no weights. Downloads are
`inflight.launch.hub`'s.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from inflight.errors import UserMistake
from inflight.executors.tensorrt_llm.engine_directory import is_encoder_decoder
from inflight.launch import hub
from inflight.model import manifest
from inflight.model.config import size, text_values
from inflight.model.files import config_path, read_json
from inflight.model.tokenizer import NO_TOKENIZER, has_tokenizer, read_assets

DEMO_NAME = "inflight-demo"
DEMO_DIRECTORY = Path(__file__).resolve().parent.parent / "demo"

_ORIGINAL = "pass the directory of the Hugging Face checkpoint with safetensors weights that it was made from"


@dataclass(frozen=True)
class Model:
    """A model directory in Hugging Face layout and the name that clients use for it."""

    directory: Path
    #: As the command line has it; `name_for_clients` is what they send.
    served_name: str

    @property
    def name_for_clients(self) -> str:
        """The name in Unicode, also where the locale could not read its letters."""
        try:
            self.served_name.encode()
        except UnicodeEncodeError:
            return os.fsencode(self.served_name).decode("utf-8", "replace")
        return self.served_name

    def assets(self) -> dict[str, bytes]:
        """The asset files by name."""
        return read_assets(self.directory)

    def vocab_size(self) -> int | None:
        """The vocabulary size that `config.json` states, if it does."""
        path = config_path(self.directory)
        if not path.is_file():
            return None
        return size(text_values(read_json(path)), "vocab_size")


def find_model(
    model: str | None, served_name: str | None, *, weights: bool, executor: str | None = None
) -> Model:
    """Resolves MODEL, the embedded one when it is `None`; a name on the Hugging Face Hub is downloaded first.

    Raises `UserMistake` where no model can be there: a missing directory, no tokenizer, or, when
    `weights` are needed, no checkpoint; and where `inflight build` wrote it for something else than
    `executor` on this machine.
    """
    default_name = None
    if model is None:
        directory, default_name = DEMO_DIRECTORY, DEMO_NAME
    elif hub.is_hub_id(model):
        directory, default_name = hub.directory_of(model, weights=weights), hub.repository_of(model)
    else:
        directory = Path(model).expanduser()
    if not directory.exists():
        raise UserMistake(
            f"the model directory `{directory}` does not exist",
            "pass a Hugging Face checkpoint, its name on the Hub (ORG/NAME) or a directory written by"
            " `inflight build`, or leave MODEL out for the embedded model",
        )
    if not directory.is_dir():
        if directory.suffix.lower() == ".gguf":
            raise UserMistake(f"`{directory}` is a GGUF file, which is not supported", _ORIGINAL)
        raise UserMistake(
            f"`{directory}` is not a directory", "pass the checkpoint's directory, not a file in it"
        )
    is_build = manifest.check(directory, executor) is not None
    wanted = []
    parts = executor == "tensorrt_llm" and is_encoder_decoder(directory)
    if weights and not is_build and not parts:
        wanted.append("config.json")
    missing = [] if has_tokenizer(directory) else ["`tokenizer.json`"]
    missing += [f"`{name}`" for name in wanted if not (directory / name).is_file()]
    patterns = ["*.safetensors", *(["rank0.engine"] if executor == "tensorrt_llm" else [])]
    if (
        weights
        and not is_build
        and not parts
        and not any(any(directory.glob(pattern)) for pattern in patterns)
    ):
        missing.append("`*.safetensors`")
        _refuse_other_weights(directory)
    if missing == ["`tokenizer.json`"]:
        raise UserMistake(
            f"`{directory}` has no `tokenizer.json`, and nothing can be tokenized without it",
            NO_TOKENIZER,
        )
    if missing:
        raise UserMistake(
            f"`{directory}` is neither a Hugging Face checkpoint nor written by `inflight build`: it has no"
            f" {' and no '.join(missing)}",
            "pass a directory with `config.json`, `tokenizer.json` and safetensors weights, or one written by"
            " `inflight build`",
        )
    return Model(directory, served_name or default_name or directory.resolve().name)


def _refuse_other_weights(directory: Path) -> None:
    """Raises `UserMistake` where the weights are there in a format that is not read."""
    if any(directory.glob("*.gguf")):
        raise UserMistake(f"`{directory}` has its weights as GGUF, which is not supported", _ORIGINAL)
    if any(directory.glob("pytorch_model*.bin")):
        path = str(directory)
        raise UserMistake(
            f"`{directory}` has its weights as `pytorch_model.bin`, and only safetensors are supported",
            "convert them with transformers, in Python:"
            f" `AutoModelForCausalLM.from_pretrained({path!r}).save_pretrained({path!r})`",
        )
