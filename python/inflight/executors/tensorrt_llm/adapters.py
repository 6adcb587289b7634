"""LoRA adapters of the PyTorch runtime: a folder with one Hugging Face adapter per task id.

Owns the folder's layout, its check at start, and which adapter a task id names. Reads no weights:
TensorRT-LLM loads an adapter with the first request for it, and again after its cache gave it up.
"""

from __future__ import annotations

from pathlib import Path

from inflight.errors import UserMistake
from inflight.executors.tensorrt_llm.convert import Refused
from inflight.model.files import load_json

CONFIG = "adapter_config.json"
#: LoraConfig's own default.
_MAX_RANK = 64


class Adapters:
    """The adapters below one folder. One that is put there later is found too."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        #: Those that are there at the start, as `ModelInfo.adapters` has them.
        self.announced = tuple((path.name, int(path.name)) for path in _subdirectories(directory))

    def path(self, task_id: int) -> str:
        """The directory of the adapter. Errors: `Refused` where there is none."""
        directory = self._directory / str(task_id)
        if not (directory / CONFIG).is_file():
            raise Refused(f"LoRA task `{task_id}` is not in `lora_adapter_dir`")
        return str(directory)


def read_adapters(directory: str, max_rank: int | None) -> Adapters:
    """Checks the folder: `7/adapter_config.json` is the adapter of task 7. `max_rank` None: the default.

    Errors: `UserMistake` for a missing folder, a name that is not a task id, or an adapter that is
    invalid or has too large a rank.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise UserMistake(
            f"`lora_adapter_dir` must be a directory, got `{directory}`",
            "pass a folder with one adapter per task id, such as `7/adapter_config.json`",
        )
    limit = max_rank or _MAX_RANK
    for adapter in _subdirectories(folder):
        if not adapter.name.isdecimal():
            raise UserMistake(
                f"`{adapter}` in `lora_adapter_dir` is not named after a LoRA task id",
                "rename it to the number that requests send as `lora_task_id`",
            )
        rank = _rank(adapter / CONFIG)
        if rank > limit:
            raise UserMistake(
                f"the adapter `{adapter}` has rank `{rank}`, and `max_lora_rank` is `{limit}`",
                f"start with `max_lora_rank={rank}`",
            )
    return Adapters(folder)


def _subdirectories(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))


def _rank(path: Path) -> int:
    try:
        return int(load_json(path)["r"])
    except (OSError, ValueError, OverflowError, KeyError, TypeError) as error:
        raise UserMistake(
            f"`{path}` is not an adapter's config: {error!r}", "download the adapter again, or remove it"
        ) from error
