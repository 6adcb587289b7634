"""Certificate authorities for tests of TLS, and the files of the certificates that they issue."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Authority:
    """An authority and where its files go."""

    directory: Path
    own: trustme.CA

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    def issue(self, name: str, host: str = "localhost") -> tuple[Path, Path]:
        """The files of a certificate for `host` and of its key, replaced as a whole where they are."""
        made = self.own.issue_cert(host)
        paths = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        contents = b"".join(blob.bytes() for blob in made.cert_chain_pems), made.private_key_pem.bytes()
        for path, content in zip(paths, contents, strict=True):
            draft = path.with_suffix(".draft")
            draft.write_bytes(content)
            draft.rename(path)
        return paths


def make_authority(directory: Path) -> Authority:
    directory.mkdir(exist_ok=True)
    made = Authority(directory, trustme.CA())
    made.ca.write_bytes(made.own.cert_pem.bytes())
    return made
