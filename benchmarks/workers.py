"""Eight pytest-xdist workers that ask for the same fixtures, against one process that does.

    python benchmarks/workers.py [--workers 8] [--rounds 3]

Each run is a pytest session with an empty cache, whose test takes the three default fixtures: the
first worker to come builds, the others wait. Workers begin together. Counted is the time from the
first request to the last answer; the whole session, in which each worker also starts an
interpreter and pytest, stands beside it. The best of the rounds, which take turns.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TEST = """
import os, time
from pathlib import Path

FIXTURES = ("deepseek_v3_mtp", "deepseek_v3_mtp_fp8", "deepseek_v3_eagle")

def test_it(request):
    Path(f"{os.getpid()}.ready").touch()
    while len(list(Path().glob("*.ready"))) < int(os.environ["ASKERS"]):
        time.sleep(0.01)
    start = time.time()
    for name in FIXTURES:
        assert request.getfixturevalue(name).path.is_dir()
    Path(f"{os.getpid()}.times").write_text(f"{start} {time.time()}")
"""


def run(askers: int, *options: str) -> tuple[float, float]:
    """Seconds from the first request to the last answer, and of the whole session."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_it.py").write_text(TEST)
        words = [sys.executable, "-m", "pytest", "-q", "--fixturegen-cache", "cache", *options]
        env = os.environ | {"ASKERS": str(askers)}
        start = time.time()
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
        session = time.time() - start
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        times = [file.read_text().split() for file in folder.glob("*.times")]
    assert len(times) == askers
    return max(float(end) for _, end in times) - min(float(begin) for begin, _ in times), session


def main() -> None:
    """Print the times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    alone, together = [], []
    for _ in range(arguments.rounds):
        alone.append(run(1, "-p", "no:xdist"))
        together.append(run(arguments.workers, "-n", str(arguments.workers), "--dist", "each"))
    for who, runs in {"one process": alone, f"{arguments.workers} workers": together}.items():
        asked, sessions = zip(*runs, strict=True)
        every = ", ".join(f"{seconds:.2f}" for seconds in asked)
        print(f"{who:11} {min(asked):6.2f} s ({every}); session {min(sessions):.2f} s")
    print(f"{min(together)[0] / min(alone)[0]:.2f} times")


if __name__ == "__main__":
    main()
