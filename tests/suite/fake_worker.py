"""A worker without an engine, for tests of what is around it: ``fake_worker.py BEHAVIOUR CASE``.

``right`` answers as expected (or, without expectations, always the same), the others misbehave.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from fixturegen.suite import worker

behaviour, path = sys.argv[1:]
case = json.loads(Path(path).read_text(encoding="utf-8"))
speculative = "speculative_config" in case["engine"]

print(worker.STEP, "start the engine", flush=True)
if speculative and behaviour == "crash":
    os.kill(os.getpid(), signal.SIGKILL)
if speculative and behaviour == "hang":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # left behind"])
    time.sleep(600)
if speculative and behaviour == "port":
    taken = socket.create_server(("127.0.0.1", 0))
    socket.create_server(taken.getsockname())
if speculative and behaviour == "error":
    print("(EngineCore pid=1) ValueError: Free memory on device is less than desired", flush=True)
    message = "RuntimeError: Engine core initialization failed. See root cause above."
    worker.write_json(Path(case["result"]), {"error": message})
    sys.exit(1)
if speculative and behaviour == "interrupt":
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(600)

scenarios = []
for scenario in case["scenarios"]:
    room = case["engine"]["max_model_len"]
    outputs = scenario["expected"] or [
        [7] * min(scenario["max_tokens"], room - len(p)) for p in scenario["prompts"]
    ]
    counters = {"prefix_cache_hits": 64}
    if speculative:
        k = case["engine"]["speculative_config"]["num_speculative_tokens"]
        counters |= {"drafts": 10, "draft_tokens": 10 * k, "accepted_tokens": 4}
        counters["accepted_per_pos"] = [4] + [0] * (k - 1)
    if speculative and behaviour == "wrong":
        outputs = [[*o[:2], 9999, *o[3:]] for o in outputs]
    result = {"name": scenario["name"], "outputs": outputs, "counters": counters, "seconds": 0.1}
    if scenario["expected"] is not None:
        result["divergences"] = [
            {"prompt": i, "position": 2, "recomputed": 7, "margin": 1.5}
            for i, output in enumerate(outputs)
            if output != scenario["expected"][i]
        ]
    scenarios.append(result)
choices = {"prefix_caching": True}
if behaviour == "other backend":
    choices["attention"] = "OTHER"
worker.write_json(
    Path(case["result"]), {"choices": choices, "engine_start_s": 0.1, "scenarios": scenarios}
)
