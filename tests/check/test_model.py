"""What MODEL may be, and one clear line for what it may not."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner

from fixturegen.check.model import load
from fixturegen.cli import cli
from fixturegen.config import ModelConfig, Quantization, RopeScaling
from fixturegen.errors import FixturegenError
from fixturegen.layouts import tensors
from fixturegen.shards import stored

CONFIG: dict[str, Any] = ModelConfig(rope_scaling=RopeScaling()).to_dict()

#: config.json of families that are understood, in their publishers' spelling.
FAMILIES = {
    "DeepSeek-V2-Lite": {
        "model_type": "deepseek_v2",
        "architectures": ["DeepseekV2ForCausalLM"],
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "n_routed_experts": 64,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 6,
        "topk_method": "greedy",
        "scoring_func": "softmax",
    },
    "Kimi-K2": {
        "model_type": "kimi_k2",
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 384,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 8,
        "topk_method": "noaux_tc",
        "rope_scaling": {"type": "yarn", "factor": 64.0, "beta_fast": 1.0, "beta_slow": 1.0},
    },
    "Moonlight": {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "n_routed_experts": 64,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 6,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "moe_intermediate_size": 1408,
        "intermediate_size": 11264,
        "rope_theta": 50000.0,
        "rope_scaling": None,
    },
    "DeepSeek-V3.2": {
        "model_type": "deepseek_v32",
        "architectures": ["DeepseekV32ForCausalLM"],
        "index_topk": 2048,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "topk_method": "noaux_tc",
        "quantization_config": {
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "scale_fmt": "ue8m0",
        },
    },
    "DeepSeek-R1 in transformers 5 spelling": {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "topk_method": "noaux_tc",
        "dtype": "bfloat16",
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0},
    },
}


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and output of ``fixturegen check``, as ``main`` would report them."""
    result = CliRunner().invoke(cli, ["check", *arguments])
    if isinstance(result.exception, FixturegenError):
        return 2, str(result.exception)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(FAMILIES[family]))
    code, output = run(str(path), "--target", "gpu=sm90", "--target", "gpu=sm100")
    assert code == 0, output


def test_folder_recipe_and_pair(fixtures: Path) -> None:
    eagle = fixtures / "deepseek-v3-eagle-random"
    assert load(str(fixtures / "deepseek-v3-mtp-random")).names
    assert load("deepseek-v3-eagle").draft is not None
    pair = load(str(eagle))
    assert pair.draft is not None and pair.draft.is_eagle_draft and pair.draft_names
    apart = load(str(eagle / "target"), str(eagle / "draft"))
    assert (apart.config, apart.draft) == (pair.config, pair.draft)
    code, output = run(str(eagle), "--target", "gpu=sm90,speculation=eagle:3")
    assert code == 0, output


#: What is wrong with a config.json -> the start of the one line about it.
WRONG: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "not JSON: "),
    "not text": (b"\xff\xfe\x00", "not JSON: "),
    "a list": ([], "expected a JSON object"),
    "deep": ("[" * 100000, "not JSON: "),
    "empty": ({}, "model_type None is not understood"),
    "another family": ({"model_type": "llama"}, "model_type 'llama' is not understood"),
    "a string for a number": (CONFIG | {"hidden_size": "7168"}, "hidden_size"),
    "true for a number": (CONFIG | {"num_attention_heads": True}, "num_attention_heads"),
    "a fraction": (CONFIG | {"kv_lora_rank": 51.2}, "kv_lora_rank"),
    "zero": (CONFIG | {"num_attention_heads": 0}, "num_attention_heads"),
    "negative": (CONFIG | {"v_head_dim": -128}, "v_head_dim"),
    "absurd": (CONFIG | {"hidden_size": 10**30}, "hidden_size"),
    "groups that do not divide": (CONFIG | {"n_group": 7}, "n_routed_experts 256"),
    "more groups chosen than there are": (CONFIG | {"topk_group": 9}, "topk_group 9"),
    "top-k above the experts": (CONFIG | {"num_experts_per_tok": 257}, "num_experts_per_tok 257"),
    "unknown quantisation": (
        CONFIG | {"quantization_config": {"quant_method": "awq"}},
        "quant_method 'awq' is not understood",
    ),
    "too large for a float": (CONFIG | {"rope_theta": 10**400}, "rope_theta"),
    "a list for the family": (
        CONFIG | {"model_type": ["deepseek_v3"]},
        "model_type ['deepseek_v3']",
    ),
    "a model class of another family": (
        CONFIG | {"architectures": ["LlamaForCausalLM"]},
        "architectures 'LlamaForCausalLM' is not understood",
    ),
    "an Eagle3 draft of another family": (
        {"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"]},
        "model_type 'llama' is not understood",
    ),
    "absurdly many layers": (CONFIG | {"num_hidden_layers": 2**31 - 1}, "num_hidden_layers"),
    "absurdly many experts": (CONFIG | {"n_routed_experts": 2**31 - 8}, "n_routed_experts"),
    "rope for each kind of layer": (
        CONFIG | {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        "rope_parameters for each kind of layer",
    ),
    "unknown rope": (CONFIG | {"rope_scaling": {"type": "llama3"}}, "rope_scaling"),
}


@pytest.mark.parametrize("what", WRONG)
def test_malformed_config(what: str, tmp_path: Path) -> None:
    content, message = WRONG[what]
    path = tmp_path / "config.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    code, output = run(str(path))
    assert code == 2 and message in output
    assert len(output.strip().splitlines()) == 1 and str(path) in output


def test_missing_keys_take_the_familys_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "deepseek_v3"}))
    assert load(str(path)).config.hidden_size == 7168


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no-such-recipe", "recipe 'no-such-recipe' does not exist"),
        ("no/such/thing", "no such folder, config.json, recipe or hub id"),
        ("missing.json", "missing.json: no such file"),
        ("missing.yaml", "missing.yaml: no such file"),
    ],
)
def test_no_such_model(name: str, message: str) -> None:
    code, output = run(name)
    assert code == 2 and message in output and len(output.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 5000 + "/y", "a\0b"])
def test_names_that_no_file_can_have(name: str) -> None:
    code, output = run(name)
    assert code == 2 and len(output) < 200


def test_what_is_no_file(tmp_path: Path) -> None:
    """A pipe would be waited for without end, a loop of links never ends, a folder is no file."""
    pipe, loop = tmp_path / "pipe.json", tmp_path / "loop.json"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    assert run(str(pipe)) == (2, f"{pipe}: not a file")
    assert run(str(loop)) == (2, f"{loop}: Too many levels of symbolic links")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    shard = tmp_path / "model.safetensors"
    shard.symlink_to("nowhere")
    assert run(str(tmp_path)) == (
        2,
        "model.safetensors: cannot be read: No such file or directory",
    )


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b"[]",
        b'{"a": {"dtype": ["BF16"], "shape": [1], "data_offsets": [0, 2]}}',
        b'{"a": {"dtype": "BF16", "shape": [1], "data_offsets": ["0", "2"]}}',
    ],
)
def test_malformed_header(header: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    shard = tmp_path / "model.safetensors"
    shard.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    assert run(str(tmp_path)) == (2, "model.safetensors: header is not a safetensors header")


def test_published_index(tmp_path: Path) -> None:
    """DeepSeek-V3's index names 91,991 tensors in 8 MB; the matrix is answered in seconds."""
    config = ModelConfig(rope_scaling=RopeScaling(), quantization=Quantization())
    names = {e.name: "model.safetensors" for t in tensors(config) for e in stored(t, config)}
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    assert len(names) == 91_991 and index.stat().st_size > 4 * 2**20
    start = time.process_time()
    code, output = run(str(tmp_path), "--matrix")
    assert code == 1 and "tensors-" not in output
    assert time.process_time() - start < 10


def test_shards_that_lack_what_the_index_names(fixtures: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(fixtures / "deepseek-v3-mtp-random", tmp_path / "x"))
    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    table["weight_map"]["lost"] = "model-00002-of-00002.safetensors"
    index.write_text(json.dumps(table))
    code, output = run(str(folder))
    assert code == 2 and "lost is in the index and in no shard" in output
    os.truncate(next(folder.glob("*.safetensors")), 4)
    code, output = run(str(folder))
    assert code == 2 and "truncated: 4 bytes" in output


def test_empty_folder(tmp_path: Path) -> None:
    code, output = run(str(tmp_path))
    assert code == 2 and "no config.json here" in output


class Hub(BaseHTTPRequestHandler):
    """Just enough of the hub: one model, a gated one, and 404 for the rest."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        body = json.dumps(CONFIG).encode()
        if "/org/gated/" in self.path:
            self.send_response(403)
            self.send_header("X-Error-Code", "GatedRepo")
            self.send_header("X-Error-Message", "Access to model org/gated is restricted")
            body = b""
        elif self.path.startswith("/org/model/resolve/") and self.path.endswith("config.json"):
            self.send_response(200)
            self.send_header("ETag", '"abc"')
            self.send_header("X-Repo-Commit", "a" * 40)
        elif self.path.startswith("/api/models/org/model"):
            self.send_response(200)
            body = json.dumps({"id": "org/model", "sha": "a" * 40, "siblings": []}).encode()
        else:
            known = "/org/model/" in self.path
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
            body = b""
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A hub on the loopback interface, with an empty cache of its own."""
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield url
    server.shutdown()


def test_hub_model(hub: str) -> None:
    code, output = run("org/model", "--target", "gpu=sm90")
    assert code == 0, output
    assert load("org/model").names is None  # no safetensors there


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/nothing", "no such repository on the hub, or it is private"),
        ("org/gated", "gated; accept its terms on the hub and set HF_TOKEN"),
        ("org/..", "not a hub id; the form is owner/name"),
    ],
)
def test_hub_refusals(hub: str, name: str, message: str) -> None:
    code, output = run(name)
    assert code == 2 and message in output and len(output.strip().splitlines()) == 1


def test_no_network(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the hub's client tries five times
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    code, output = run("org/model")
    assert code == 2 and "check the network and HF_ENDPOINT" in output
    assert len(output.strip().splitlines()) == 1


def test_endpoint_that_is_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:99999")
    code, output = run("org/model")
    assert (code, output) == (
        2,
        "org/model: HF_ENDPOINT is not an address: Port out of range 0-65535",
    )


def test_offline(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code, output = run("org/model")
    assert code == 2 and "HF_HUB_OFFLINE is set" in output
