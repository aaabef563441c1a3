"""A cache of built recipes, shared by test workers and concurrent jobs.

An entry's name ends in its build key, a hash of the resolved recipe and the algorithm version, so
that an entry never needs to be invalidated: another recipe is another entry. A file lock for each
entry lets the first asker build while the others wait. Entries appear by rename, whole or not at
all, and are held against their manifests' sha256s once in each run; a damaged one is built again.

Layout below the root::

    <recipe>-<key>/        the checkpoint, or target/ and draft/
    <recipe>-<key>.lock    held while building and verifying; its mtime is the last use
    <recipe>-<key>.seen    the run that verified the entry, and the files' sizes and times then
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fixturegen.errors import CheckpointError, FixturegenError
from fixturegen.manifest import MANIFEST, Manifest
from fixturegen.recipe import Recipe

#: Puts a recipe into a folder that does not exist yet, atomically.
Builder = Callable[[Recipe, Path], object]

#: What one process counts as one run when the caller does not say.
RUN = uuid.uuid4().hex


class CacheReadOnly(FixturegenError):
    """The cache lacks an entry and cannot be written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One built recipe in the cache; size in bytes, last use in seconds since the epoch."""

    path: Path
    nbytes: int
    last_used: float

    @property
    def name(self) -> str:
        """The recipe's name and the start of its build key."""
        return self.path.name


def default_root() -> Path:
    """``FIXTUREGEN_CACHE``, or the platform's cache folder for fixturegen."""
    import platformdirs

    return Path(os.environ.get("FIXTUREGEN_CACHE") or platformdirs.user_cache_dir("fixturegen"))


def build_key(recipe: Recipe) -> str:
    """Hex digest of everything that a build's bytes depend on."""
    from fixturegen.values import ALGORITHM_VERSION

    text = json.dumps([recipe.to_dict(), ALGORITHM_VERSION], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def damage(folder: Path) -> str | None:
    """What is wrong with a cached checkpoint or pair: the first file that is not as its manifest
    says, by sha256."""
    folders = [path.parent for path in sorted(folder.rglob(MANIFEST))]
    if not folders:
        return f"no {MANIFEST}"
    for place in folders:
        try:
            manifest = Manifest.load(place)
        except CheckpointError as error:
            return str(error)
        for name, expected in manifest.files.items():
            if not (place / name).is_file():
                return f"{name} is missing"
            with (place / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                    return f"{name} does not have the manifest's sha256"
    return None


class Cache:
    """The cache at ``root``.

    ``run`` names the run that asks (for example a pytest session with all its workers): within one,
    an entry is hashed once and then recognised by the sizes and times of its files. ``builder``
    fills an entry, by default with :func:`fixturegen.build`. ``report`` gets a line for each entry
    that was damaged and built again.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        run: str = RUN,
        builder: Builder | None = None,
        report: Callable[[str], object] = lambda line: None,
    ) -> None:
        self.root = Path(root) if root else default_root()
        self._run = run
        self._builder = builder or _build
        self._report = report

    def get(self, recipe: Recipe) -> Path:
        """The folder of the built recipe; builds it if it is not there or damaged.

        Raises CacheReadOnly when it would have to build into a folder that cannot be written,
        BuildError when the build fails.
        """
        entry = self.root / f"{recipe.name}-{build_key(recipe)[:16]}"
        try:
            with self._locked(entry):
                return self._get_locked(recipe, entry)
        except OSError as error:
            # No lock can be taken here, so nobody builds here either.
            if entry.is_dir() and damage(entry) is None:
                return entry
            raise CacheReadOnly(
                f"{self.root}: cannot be written ({error.strerror}) and has no {entry.name}: "
                "set FIXTUREGEN_CACHE to a folder that can"
            ) from None

    def _get_locked(self, recipe: Recipe, entry: Path) -> Path:
        seen = entry.with_name(f"{entry.name}.seen")
        if entry.is_dir():
            stamp = self._stamp(entry)
            if seen.is_file() and seen.read_text() == stamp:
                return entry
            wrong = damage(entry)
            if wrong is None:
                seen.write_text(stamp)
                return entry
            self._report(f"{entry}: {wrong}; building it again")
            shutil.rmtree(entry)
        # We hold the lock, so whatever lies in the workshop was left by a worker that was killed.
        workshop = self.root / f".{entry.name}"
        shutil.rmtree(workshop, ignore_errors=True)
        workshop.mkdir()
        try:
            self._builder(recipe, workshop / "checkpoint")
            (workshop / "checkpoint").rename(entry)
        finally:
            shutil.rmtree(workshop, ignore_errors=True)
        seen.write_text(self._stamp(entry))
        return entry

    def _stamp(self, entry: Path) -> str:
        files = [(path, path.stat()) for path in sorted(entry.rglob("*")) if path.is_file()]
        facts = [[str(p.relative_to(entry)), s.st_size, s.st_mtime_ns, s.st_ino] for p, s in files]
        return json.dumps([self._run, facts])

    @contextmanager
    def _locked(self, entry: Path, blocking: bool = True) -> Iterator[None]:
        from filelock import FileLock

        self.root.mkdir(parents=True, exist_ok=True)
        path = entry.with_name(f"{entry.name}.lock")
        with FileLock(path, blocking=blocking):
            os.utime(path)
            yield

    def entries(self) -> list[Entry]:
        """What is in the cache, the longest unused first."""
        found = []
        for path in self.root.glob("[!.]*-" + "[0-9a-f]" * 16):
            if path.is_dir():
                lock = path.with_name(f"{path.name}.lock")
                used = (lock if lock.exists() else path).stat().st_mtime
                nbytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
                found.append(Entry(path=path, nbytes=nbytes, last_used=used))
        return sorted(found, key=lambda entry: entry.last_used)

    def prune(self, max_size: int) -> list[Entry]:
        """Remove the longest unused entries until at most ``max_size`` bytes are left; those
        removed. An entry that is being built or verified is left alone. What processes that were
        killed left unfinished goes as well."""
        from filelock import Timeout

        entries = self.entries()
        total = sum(entry.nbytes for entry in entries)
        removed = []
        for entry in entries:
            if total <= max_size:
                break
            try:
                with self._locked(entry.path, blocking=False):
                    # Renamed first: whoever looks sees a whole entry or none.
                    trash = self.root / f".{entry.name}.trash"
                    shutil.rmtree(trash, ignore_errors=True)
                    entry.path.rename(trash)
                    shutil.rmtree(trash)
                    entry.path.with_name(f"{entry.name}.seen").unlink(missing_ok=True)
            except Timeout:
                continue
            total -= entry.nbytes
            removed.append(entry)
        for left in self.root.glob(".*-" + "[0-9a-f]" * 16 + "*"):
            entry_path = self.root / left.name[1:].removesuffix(".trash")
            with suppress(Timeout), self._locked(entry_path, blocking=False):
                shutil.rmtree(left, ignore_errors=True)
        return removed


def _build(recipe: Recipe, folder: Path) -> object:
    from fixturegen.builder import build

    # A recipe that was overridden may break the bounds that the original claims.
    return build(recipe, folder, check=False)
