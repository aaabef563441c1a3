"""A private Hugging Face cache in which fixtures stand under the names of upstream models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fixturegen.manifest import MANIFEST


def lay_out(hf_home: Path, checkpoints: Mapping[str, tuple[Path, str]]) -> None:
    """Make ``hf_home/hub`` hold each checkpoint under its hub id.

    ``checkpoints``: hub id -> (folder, content hash). The hash's first 40 digits are the revision.
    Files are links to the checkpoint's own; nothing is copied.
    """
    for model, (folder, content_hash) in checkpoints.items():
        repo = hf_home / "hub" / ("models--" + model.replace("/", "--"))
        revision = content_hash[:40]
        snapshot = repo / "snapshots" / revision
        snapshot.mkdir(parents=True, exist_ok=True)
        (repo / "refs").mkdir(exist_ok=True)
        (repo / "refs" / "main").write_text(revision, encoding="utf-8")
        for file in folder.iterdir():
            link = snapshot / file.name
            if file.is_file() and file.name != MANIFEST and not link.exists():
                link.symlink_to(file.absolute())
