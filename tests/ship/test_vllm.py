"""A test file written as vLLM's own are, with hub ids, run on a real engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: After vLLM's test_eagle_correctness: ids of the hub, MLA switched by the environment, a reference
#: and a share of equal texts. What differs is where the ids lead and what is asserted at the end.
EAGLE_TEST = """
import pytest
from vllm import LLM, SamplingParams


@pytest.fixture(autouse=True)
def hub(hf_cache_alias):
    hf_cache_alias(
        {
            "eagle618/deepseek-v3-random": "deepseek-v3-eagle",
            "eagle618/eagle-deepseek-v3-random": "deepseek-v3-eagle:draft",
        }
    )


SETUP = ("eagle", "eagle618/deepseek-v3-random", "eagle618/eagle-deepseek-v3-random", 1)


@pytest.mark.parametrize("model_setup", [SETUP])
def test_eagle_correctness(monkeypatch, model_setup, deepseek_v3_eagle):
    method, model_name, spec_model_name, tp_size = model_setup
    with monkeypatch.context() as m:
        m.setenv("VLLM_MLA_DISABLE", "1")
        spec_llm = LLM(
            model=model_name,
            trust_remote_code=True,
            tensor_parallel_size=tp_size,
            speculative_config={
                "method": method,
                "model": spec_model_name,
                "num_speculative_tokens": 3,
                "max_model_len": 2048,
            },
            max_model_len=2048,
        )
        sampling = SamplingParams(temperature=0, max_tokens=10, ignore_eos=False)
        chats = [[{"role": "user", "content": f"say {word}"}] for word in ("one", "two", "three")]
        texts = [o.outputs[0].text for o in spec_llm.chat(chats, sampling)]
        assert all(texts)
        outputs = spec_llm.generate(
            deepseek_v3_eagle.prompts(), deepseek_v3_eagle.sampling_params()
        )
        deepseek_v3_eagle.assert_outputs(outputs)
"""


@pytest.mark.vllm
def test_a_file_like_vllms_own_runs_on_our_eagle_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Target and draft by their ids; every token is the planted one."""
    (tmp_path / "test_eagle.py").write_text(EAGLE_TEST)
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FIXTUREGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_eagle.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "1 passed" in done.stdout
