"""Engine sources for the truth tests: taken from the package index at test time, kept in a cache.

They come through pip's own index and session, so whatever index and proxy a machine is set up with
are used. Of wheels only the files asked for are read, by HTTP ranges. Where nothing can be fetched
the test is skipped with the reason; in CI (``CI`` or ``FIXTUREGEN_REQUIRE_ENGINE``) it fails.
"""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from platformdirs import user_cache_path

#: Suffixes that truth tests read; the rest of a source release is not unpacked.
WANTED = (".py", ".cu", ".cuh", ".cpp", ".h", ".hpp", ".cmake", "cuda.txt")


def cache() -> Path:
    """Where sources are kept: FIXTUREGEN_TEST_SOURCES, or the user's cache folder."""
    return Path(
        os.environ.get("FIXTUREGEN_TEST_SOURCES") or user_cache_path("fixturegen") / "sources"
    )


def vllm_source(version: str) -> Path:
    """The unpacked source release of vLLM: Python, CUDA and C++ files."""
    return source("vllm", version)


def source(package: str, version: str) -> Path:
    """The unpacked source release of a package: Python, CUDA and C++ files."""
    folder = cache() / f"{package}-{version}"
    with FileLock(_lock(folder)):
        if not (folder / ".complete").exists():
            with _reachable(f"{package} {version}"), _open(package, version, source=True) as file:
                _unpack(file, folder)
            (folder / ".complete").touch()
    return folder


def wheel_file(package: str, version: str, path: str) -> Path:
    """One file of a wheel, such as ``flashinfer/data/csrc/....cu``."""
    file = cache() / f"{package}-{version}-wheel" / path
    with FileLock(_lock(cache() / f"{package}-{version}-wheel")):
        if not file.exists():
            with _reachable(f"{package} {version}"), _open(package, version) as remote:
                content = zipfile.ZipFile(io.BufferedReader(remote, 1 << 20)).read(path)
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".partial")
            partial.write_bytes(content)
            partial.replace(file)
    return file


def _lock(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder.parent / f".{folder.name}.lock"


def _unpack(file: Any, folder: Path) -> None:
    with tarfile.open(fileobj=file, mode="r|gz") as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            if member.isfile() and name.endswith(WANTED) and ".." not in name:
                content = archive.extractfile(member)
                assert content is not None
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content.read())


@contextmanager
def _reachable(what: str) -> Iterator[None]:
    """Skip when the index cannot be reached; fail instead where CI says it must be."""
    try:
        yield
    except (OSError, LookupError) as error:
        reason = f"{what} cannot be fetched: {' '.join(str(error).split())[:200]}"
        if os.environ.get("CI") or os.environ.get("FIXTUREGEN_REQUIRE_ENGINE"):
            pytest.fail(reason)
        pytest.skip(reason)


@contextmanager
def _open(package: str, version: str, *, source: bool = False) -> Iterator[Any]:
    """The distribution's file: a stream for a source release, seekable for a wheel.

    pip has no command that prints a file's address without building metadata, hence its internals.
    """
    from pip._internal.commands import create_command
    from pip._vendor.packaging.specifiers import SpecifierSet

    command: Any = create_command("download")
    kind = "--no-binary" if source else "--only-binary"
    options, _ = command.parse_args(["--no-deps", "--pre", kind, package, "-q", package])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session)
        exact = SpecifierSet(f"=={version}", prereleases=True)
        best = finder.find_best_candidate(package, exact).best_candidate
        if best is None:
            raise LookupError(f"the index has no {package} {version}")
        if source:
            with session.get(best.link.url_without_fragment, stream=True) as answer:
                answer.raise_for_status()
                yield answer.raw
        else:
            yield _Remote(session, best.link.url_without_fragment)


class _Remote(io.RawIOBase):
    """A remote file that is read by ranges."""

    def __init__(self, session: Any, url: str) -> None:
        self._session, self._url, self._at = session, url, 0
        answer = session.head(url, headers={"Accept-Encoding": "identity"})
        answer.raise_for_status()
        self._size = int(answer.headers["Content-Length"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._size, self._at + len(buffer))
        if end <= self._at:
            return 0
        span = {"Range": f"bytes={self._at}-{end - 1}", "Accept-Encoding": "identity"}
        answer = self._session.get(self._url, headers=span)
        answer.raise_for_status()
        if answer.status_code != 206:
            raise OSError("the index's file server does not serve ranges")
        buffer[: len(answer.content)] = answer.content
        self._at += len(answer.content)
        return len(answer.content)
