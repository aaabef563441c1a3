"""The cells of the ``exact`` suite: recipe x backend x MLA x speculation x eager/graphs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fixturegen.check.target import Target
from fixturegen.recipe import Recipe
from fixturegen.suite.machine import Machine, release

#: Environment variables by which the catalogue's answer for a target may change.
_ENV_OF_TARGET = (
    "VLLM_USE_DEEP_GEMM",
    "VLLM_USE_FLASHINFER_MOE_FP8",
    "VLLM_USE_FLASHINFER_MOE_FP16",
)

#: GPUs whose cells are listed, with a prediction, even where they cannot run.
LISTED_GPUS = ("sm90", "sm100")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One engine start."""

    recipe: str
    #: Attention backend asked for: ``auto``, ``FLASH_ATTN`` or any other name vLLM knows.
    backend: str
    mla: bool
    #: ``none``, or method and draft tokens such as ``mtp:1`` or ``eagle:3``.
    speculation: str
    graphs: bool
    #: 2 for a second start of the same engine, whose output must be the first one's.
    start: int = 1
    #: GPU architecture the case is for, ``cpu`` without one.
    gpu: str

    @property
    def id(self) -> str:
        """Name of the case, such as ``deepseek-v3-mtp/auto/mla/mtp-3/eager``."""
        parts = [
            self.recipe,
            self.backend,
            "mla" if self.mla else "mha",
            "target" if self.speculation == "none" else self.speculation.replace(":", "-"),
            "graphs" if self.graphs else "eager",
        ]
        return "/".join(parts) + (f"/start-{self.start}" if self.start > 1 else "")

    @property
    def reference(self) -> bool:
        """Whether other cases compare with this one: the target alone, started first."""
        return self.speculation == "none" and self.start == 1

    @property
    def reference_case(self) -> Case:
        """The case that this one is compared with where the output is not known in advance."""
        return dataclasses.replace(self, speculation="none", start=1)

    @property
    def method(self) -> str:
        """``none``, ``mtp`` or ``eagle``."""
        return self.speculation.partition(":")[0]

    @property
    def k(self) -> int:
        """Draft tokens per step, 0 for the target alone."""
        return int(self.speculation.partition(":")[2] or 0)

    @property
    def attention(self) -> str:
        """The backend's name for vLLM, whose FlashAttention for MLA has a name of its own."""
        return "FLASH_ATTN_MLA" if self.mla and self.backend == "FLASH_ATTN" else self.backend

    @property
    def env(self) -> dict[str, str]:
        """Environment of the engine."""
        return {} if self.mla else {"VLLM_MLA_DISABLE": "1"}

    def target(self, machine: Machine) -> Target:
        """What to ask :func:`fixturegen.check.check`."""
        env = {n: v for n, v in machine.env.items() if n in _ENV_OF_TARGET} | self.env
        return Target(
            vllm=".".join(map(str, release(machine.vllm))) if machine.vllm else Target().vllm,
            gpu=self.gpu,
            attention=self.attention,
            env=tuple(sorted(env.items())),
            speculation=self.speculation,
        )

    def obstacle(self, machine: Machine) -> str:
        """Why the case cannot run on ``machine``, or an empty string."""
        if self.gpu != machine.gpu:
            return f"needs {self.gpu.upper()}; this machine has {machine.gpu.upper()}"
        if self.graphs and not machine.on_gpu:
            return "CUDA graphs need a GPU"
        if self.backend != "auto" and not machine.on_gpu:
            return f"{self.backend} needs a GPU; vLLM's CPU build has one backend of its own"
        return machine.problem


def matrix(
    recipes: Sequence[Recipe],
    machine: Machine,
    *,
    backends: Sequence[str],
    mla: Sequence[bool],
    ks: Sequence[int],
    graphs: Sequence[bool],
) -> list[Case]:
    """All cases, references first; for this machine's GPU and for those that are always listed."""
    gpus = dict.fromkeys((machine.gpu, *LISTED_GPUS))
    cases = [
        Case(
            recipe=recipe.name,
            backend=backend,
            mla=with_mla,
            speculation=speculation,
            graphs=with_graphs,
            start=start,
            gpu=gpu,
        )
        for gpu, recipe, with_graphs, with_mla, backend in itertools.product(
            gpus, recipes, graphs, mla, backends
        )
        for speculation, start in _speculations(recipe, ks)
    ]
    return sorted(cases, key=lambda case: (case.gpu != machine.gpu, not case.reference))


def _speculations(recipe: Recipe, ks: Sequence[int]) -> Iterator[tuple[str, int]]:
    yield "none", 1
    yield "none", 2
    if recipe.draft != "none":
        yield from ((f"{recipe.draft}:{k}", 1) for k in ks)
