"""The source packages whose chat templates and vocabularies are compared, pinned by version and hash.

Owns the download and which files of an archive are kept. The packages are never built or imported.
"""

from __future__ import annotations

import os
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

from pypi_simple import PyPISimple


@dataclass(frozen=True)
class Package:
    """A source package on PyPI."""

    project: str
    version: str
    sha256: str
    #: Full match on the paths of the archive, without its first directory.
    wanted: str

    def files(self) -> dict[str, bytes]:
        """The wanted files by their path in the package."""
        files = {}
        with tarfile.open(self._archive()) as archive:
            for member in archive:
                _, _, path = member.name.partition("/")
                if member.isfile() and re.fullmatch(self.wanted, path):
                    content = archive.extractfile(member)
                    assert content is not None, path
                    files[path] = content.read()
        return files

    def _archive(self) -> Path:
        """The archive in the cache; downloads it, with its hash checked, if it is not there yet."""
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        path = Path(base) / "inflight" / "compare_text" / f"{self.sha256}.tar.gz"
        if path.exists():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with PyPISimple() as index:
            for package in index.get_project_page(self.project).packages:
                if package.digests.get("sha256") == self.sha256:
                    print(f"downloading {package.filename} ({(package.size or 0) / 1e6:.0f} MB)", flush=True)
                    partial = path.with_suffix(".part")
                    index.download_package(package, partial)
                    return partial.rename(path)
        raise SystemExit(f"PyPI has no file of {self.project} {self.version} with the hash {self.sha256}")


LLAMA_CPP = Package(
    project="llama-cpp-python",
    version="0.3.36",
    sha256="832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    wanted=r"vendor/llama\.cpp/models/(templates/.*\.jinja|ggml-vocab-.*\.gguf(\.inp|\.out)?)",
)
VLLM = Package(
    project="vllm",
    version="0.33.0",
    sha256="f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
    wanted=r"(examples|vllm/transformers_utils/chat_templates)/.*\.jinja"
    r"|tests/(tool_parsers|reasoning)/test_\w+\.py",
)
