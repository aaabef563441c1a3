"""Eight pytest-xdist workers that ask for the same fixtures, against one process that does.

    python benchmarks/workers.py [--workers 8] [--rounds 3]

Each run is a pytest session with an empty cache, whose test takes the three default fixtures: the
first worker to come builds, the others wait. Workers begin together. Printed are the seconds from
the first request to the last answer, the CPU seconds of all processes in that time (which say more
on a busy machine) and the whole session, in which each worker also starts an interpreter and
pytest. The best of the rounds, which take turns.
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
    start, cpu = time.time(), time.process_time()
    for name in FIXTURES:
        assert request.getfixturevalue(name).path.is_dir()
    Path(f"{os.getpid()}.times").write_text(f"{start} {time.time()} {time.process_time() - cpu}")
"""


def run(askers: int, *options: str) -> tuple[float, float, float]:
    """Seconds from the first request to the last answer, of CPUs meanwhile, of the session."""
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
        times = [map(float, file.read_text().split()) for file in folder.glob("*.times")]
    begins, ends, cpus = zip(*times, strict=True)
    assert len(begins) == askers
    return max(ends) - min(begins), sum(cpus), session


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
    best = [[min(values) for values in zip(*runs, strict=True)] for runs in (alone, together)]
    print("                 asked to answered     CPU  session")
    for who, seconds in zip(("one process", f"{arguments.workers} workers"), best, strict=True):
        print(f"{who:16} {seconds[0]:15.2f} s {seconds[1]:6.2f} s {seconds[2]:6.2f} s")
    ratios = [b / a for a, b in zip(*best, strict=True)]
    print(f"{'times':16} {ratios[0]:15.2f}   {ratios[1]:6.2f}   {ratios[2]:6.2f}")


if __name__ == "__main__":
    main()
