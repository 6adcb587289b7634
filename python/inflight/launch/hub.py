"""Models by their name on the Hugging Face Hub: from its cache, or downloaded into it.

Owns which texts are such names, which files of a repository are wanted, and what to say where there are none.
The cache, its environment variables (`HF_HOME`, `HF_HUB_OFFLINE`, `HF_ENDPOINT`, `HF_TOKEN`) and the download
are `huggingface_hub`'s.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from inflight.errors import InflightError, UserMistake

#: ORG/NAME, and a branch, tag or commit behind an @.
ID = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")

#: Configs, tokenizers and chat templates.
FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
WEIGHTS = ["*.safetensors"]
#: Other formats of the same weights: in directories, or under Mistral's own name.
UNWANTED = ["*/*", "consolidated*.safetensors"]


def is_hub_id(model: str) -> bool:
    """Whether `model` is not a path here, and looks like a name on the Hub."""
    return ID.fullmatch(model) is not None and not Path(model).exists()


def repository_of(model: str) -> str:
    """The name without a revision."""
    return model.partition("@")[0]


def directory_of(model: str, *, weights: bool) -> Path:
    """The directory that `model` is, or names on the Hub; raises as `fetch`."""
    return fetch(model, weights=weights) if is_hub_id(model) else Path(model).expanduser()


def fetch(model: str, *, weights: bool) -> Path:
    """The directory of `model` in the Hub's cache, after downloading what is missing from it.

    Without `weights`, those are left out. Progress goes to standard error. Raises `UserMistake` where a user
    can have no such model, else `InflightError`.
    """
    found = ID.fullmatch(model)
    assert found is not None
    repository, revision = found["repository"], found["revision"]
    # Not at the top: few commands need it, and it takes its time.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub import errors as hub
    from huggingface_hub.utils import disable_progress_bars, logging

    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        directory = snapshot_download(
            repository,
            revision=revision,
            allow_patterns=FILES + (WEIGHTS if weights else []),
            ignore_patterns=UNWANTED,
        )
    except hub.GatedRepoError:
        raise UserMistake(
            f"`{repository}` is only for accounts that have accepted its terms",
            f"accept them at {constants.ENDPOINT}/{repository}, then log in with `hf auth login`"
            " or set `HF_TOKEN`",
        ) from None
    except hub.RevisionNotFoundError:
        raise UserMistake(
            f"`{repository}` has no revision `{revision or 'main'}`",
            "pass one of its branches, tags or commits",
        ) from None
    except hub.RepositoryNotFoundError:
        raise UserMistake(
            f"there is no directory `{model}`, and no model `{repository}` at {constants.ENDPOINT}",
            "check the spelling; for a private model, log in with `hf auth login` or set `HF_TOKEN`",
        ) from None
    except (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled) as error:
        raise InflightError(
            f"`{model}` is not in the cache `{constants.HF_HUB_CACHE}`, and {_unreachable(constants)}",
            f"connect to the network, or run `hf download {repository}` on a machine that is and pass the"
            " directory that it prints",
        ) from error
    # Whatever the library's HTTP client raises, which its releases change.
    except Exception as error:
        raise InflightError(
            f"`{repository}` cannot be downloaded: {str(error).strip().partition(chr(10))[0]}",
            "rerun the command to resume",
        ) from error
    return Path(directory)


def _unreachable(constants: object) -> str:
    if getattr(constants, "HF_HUB_OFFLINE", False):
        return "`HF_HUB_OFFLINE` forbids downloads"
    return f"{getattr(constants, 'ENDPOINT', 'the Hub')} cannot be reached"
