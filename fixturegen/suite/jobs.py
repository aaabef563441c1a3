"""Run commands side by side, each in a session and temp dir of its own, with a time limit.

Whatever a command leaves behind is ended with it: its process group, and any process that inherited
the environment variable by which our own jobs are known.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Set in the environment of every process of a job, to a value that is the job's alone.
MARK = "FIXTUREGEN_JOB"

_POLL_S = 0.1
_GRACE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command to run.

    ``env`` is added to this process's environment, ``temp_files`` are copied into the job's temp
    dir, which is short-lived and has a short path: engines put sockets there.
    """

    id: str
    command: tuple[str, ...]
    log: Path
    timeout_s: float
    env: Mapping[str, str] = field(default_factory=dict)
    temp_files: tuple[Path, ...] = ()
    cwd: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended. ``returncode`` is None when it was stopped, or never started."""

    job: Job
    returncode: int | None
    seconds: float
    #: Why it could not be started, such as a full disk; otherwise empty.
    not_started: str = ""

    @property
    def timed_out(self) -> bool:
        """Whether the time limit ended it."""
        return self.returncode is None and not self.not_started


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    mark: str
    temp: Path
    started: float
    cores: set[int]


def run_jobs(
    jobs: Sequence[Job],
    workers: int,
    on_start: Callable[[Job], None] = lambda job: None,
    *,
    pin: bool = False,
) -> Iterator[Ended]:
    """Run ``jobs`` in order, at most ``workers`` at once, and yield each as it ends.

    ``pin`` deals the CPU cores out to the workers: engines that compute on the same cores wait for
    each other at every step. Closing the iterator, or an exception in the consumer, ends the jobs
    that are still running.
    """
    waiting = list(reversed(jobs))
    running: list[_Running] = []
    shares = _shares(workers) if pin else [set[int]()] * workers
    try:
        while waiting or running:
            while waiting and shares:
                job = waiting.pop()
                on_start(job)
                try:
                    running.append(_start(job, shares[-1]))
                    shares.pop()
                except OSError as error:
                    yield Ended(job=job, returncode=None, seconds=0.0, not_started=str(error))
            for ended in [r for r in running if _has_ended(r)]:
                running.remove(ended)
                shares.append(ended.cores)
                yield _end(ended)
            time.sleep(_POLL_S)
    finally:
        for left in running:
            _end(left)


def _shares(workers: int) -> list[set[int]]:
    """This process's cores, dealt out; none where the system cannot bind processes to cores."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [set(cores[i % max(1, len(cores)) :: workers]) for i in range(workers)]


def _start(job: Job, cores: set[int]) -> _Running:
    """Start a job on ``cores``, or on all where there are none; raises OSError."""
    mark = uuid.uuid4().hex
    temp = Path(tempfile.mkdtemp(prefix="fixturegen-"))
    try:
        for file in job.temp_files:
            shutil.copy(file, temp)
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("wb") as log:
            process = subprocess.Popen(
                job.command,
                env={**os.environ, **job.env, "TMPDIR": str(temp), MARK: mark},
                cwd=job.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError:
        shutil.rmtree(temp, ignore_errors=True)
        raise
    if cores:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(process.pid, cores)
    return _Running(job, process, mark, temp, time.monotonic(), cores)


def _has_ended(running: _Running) -> bool:
    over = time.monotonic() - running.started > running.job.timeout_s
    return over or running.process.poll() is not None


def _end(running: _Running) -> Ended:
    """Collect a job that has ended, or stop it; then end what it left behind."""
    returncode = running.process.poll()
    if returncode is None:
        _signal_group(running, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.process.wait(_GRACE_S)
    _signal_group(running, signal.SIGKILL)
    for pid in _marked(running.mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    running.process.wait()
    shutil.rmtree(running.temp, ignore_errors=True)
    seconds = round(time.monotonic() - running.started, 1)
    return Ended(job=running.job, returncode=returncode, seconds=seconds)


def _signal_group(running: _Running, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(running.process.pid, number)


def _marked(mark: str) -> Iterator[int]:
    """Processes whose environment holds a job's mark (Linux; nothing elsewhere)."""
    needle = f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if needle in entry.read_bytes().split(b"\0"):
                yield int(entry.parent.name)
