"""Resolves MODEL and reads the files that gateways fetch. Knows file names; reads no weights. Downloads are
`inflight.launch.hub`'s; what a `model.yaml` of Triton's llmapi model says is `inflight.model.llmapi`'s.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inflight import executors
from inflight.errors import UserMistake
from inflight.executors.tensorrt_llm.engine_directory import is_encoder_decoder
from inflight.launch import hub
from inflight.model import llmapi, manifest
from inflight.model.config import size, text_values
from inflight.model.files import config_path, read_json
from inflight.model.tokenizer import NO_TOKENIZER, has_tokenizer, read_assets

DEMO_NAME = "inflight-demo"
#: The executor of the arguments in a `model.yaml`.
TENSORRT_LLM = "tensorrt_llm"
DEMO_DIRECTORY = Path(__file__).resolve().parent.parent / "demo"

_ORIGINAL = "pass the directory of the Hugging Face checkpoint with safetensors weights that it was made from"


@dataclass(frozen=True)
class Model:
    """A model directory in Hugging Face layout and the name that clients use for it."""

    directory: Path
    #: As the command line has it; `name_for_clients` is what they send.
    served_name: str
    #: The `model.yaml` of Triton's llmapi model that names the directory; its arguments are the executor's.
    file: Path | None = None

    @property
    def given(self) -> Path:
        """What a further process finds the same model with."""
        return self.directory if self.file is None else self.file

    def executor_options(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """`chosen`, and the arguments of `file`. Raises `UserMistake` where another file was chosen."""
        if self.file is None:
            return dict(chosen)
        if "llm_args" in chosen:
            raise UserMistake(
                f"`llm_args` is `{chosen['llm_args']}`, and the model is served with the arguments in"
                f" `{self.file}`",
                f"write them all into one file, or pass the checkpoint `{self.directory}` as MODEL",
            )
        return {**chosen, "llm_args": str(self.file)}

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
    Of Triton's llmapi model it is the checkpoint that its `model.yaml` names.

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
        file = llmapi.find(directory)
        if file is not None:
            return _of_llmapi(file, served_name, weights=weights, executor=executor)
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
    parts = executor == TENSORRT_LLM and is_encoder_decoder(directory)
    if weights and not is_build and not parts:
        wanted.append("config.json")
    missing = [] if has_tokenizer(directory) else ["`tokenizer.json`"]
    missing += [f"`{name}`" for name in wanted if not (directory / name).is_file()]
    patterns = ["*.safetensors", *(["rank0.engine"] if executor == TENSORRT_LLM else [])]
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


def executor_for(model: str | None, executor: str, *, is_chosen: bool) -> str:
    """The executor of MODEL: `executor` where the user chose it, or MODEL is for any; TensorRT-LLM for its
    llmapi model. Raises `UserMistake` where that is not installed.
    """
    if is_chosen or model is None or hub.is_hub_id(model):
        return executor
    file = llmapi.find(Path(model).expanduser())
    if file is None:
        return executor
    try:
        executors.require(TENSORRT_LLM)
    except UserMistake as error:
        raise UserMistake(
            f"`{file}` is for TensorRT-LLM: {error.what}",
            f"{error.remedy}; or pass the checkpoint itself, `{llmapi.read(file).name}`, as MODEL, which the"
            f" executor `{executor}` serves",
        ) from error
    return TENSORRT_LLM


def _of_llmapi(file: Path, served_name: str | None, *, weights: bool, executor: str | None) -> Model:
    """The checkpoint that the `model.yaml` names."""
    held = llmapi.read(file)
    if executor not in (None, TENSORRT_LLM) and held.own:
        raise UserMistake(
            f"the executor `{executor}` has no {', '.join(f'`{name}`' for name in held.own)}, which `{file}`"
            " sets for TensorRT-LLM",
            f"use the executor `{TENSORRT_LLM}`, or pass the checkpoint itself, `{held.name}`, as MODEL",
        )
    model = Path(held.model).expanduser()
    if not hub.is_hub_id(held.name) and not model.exists():
        raise UserMistake(
            f"`model` in `{file}` is `{held.model}`, which does not exist",
            "set it to the checkpoint's directory or its name on the Hub (ORG/NAME)",
        )
    if llmapi.find(model) is not None:
        raise UserMistake(
            f"`model` in `{file}` is `{held.model}`, which is a Triton repository", "set it to a checkpoint"
        )
    try:
        found = find_model(held.name, served_name, weights=weights, executor=executor)
    except UserMistake as error:
        raise UserMistake(f"`model` in `{file}`: {error.what}", error.remedy) from error
    # Another executor gets none of its arguments: there are none.
    return replace(found, file=file.absolute()) if executor in (None, TENSORRT_LLM) else found


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
