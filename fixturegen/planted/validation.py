"""Which recipes can be planted, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fixturegen.errors import RecipeError
from fixturegen.planted.fields import STEPS, Basis
from fixturegen.planted.function import MIDDLE, SPECIAL, WORDS
from fixturegen.planted.router import require

if TYPE_CHECKING:
    from fixturegen.recipe import Recipe


def validate(recipe: Recipe, where: str) -> None:
    """Raise RecipeError when the design has no room in the recipe's dimensions."""
    c, knobs = recipe.model, recipe.planted

    def need(good: bool, text: str) -> None:
        if not good:
            raise RecipeError(f"{where}: planted weights need {text}")

    need(c.num_hidden_layers == 3, f"num_hidden_layers 3, got {c.num_hidden_layers}")
    dense = [i for i in range(4) if not c.is_moe_layer(i)]
    need(dense == [0], f"one dense layer, then MoE layers, got dense layers {dense}")
    need(
        c.num_nextn_predict_layers <= 1,
        f"at most 1 MTP layer, got {c.num_nextn_predict_layers}",
    )
    need(c.num_attention_heads % 8 == 0, f"heads in eights, got {c.num_attention_heads}")
    need(c.q_lora_rank is not None, "a q_lora_rank")
    need((c.n_shared_experts or 0) >= 1, "a shared expert")
    need(not c.tie_word_embeddings, "tie_word_embeddings false")
    need(c.bos_token_id == 0, f"bos_token_id 0, got {c.bos_token_id}")
    for name in ("hidden_size", "q_lora_rank", "qk_nope_head_dim"):
        size = getattr(c, name)
        need(size % 16 == 0, f"{name} in multiples of 16, got {size}")
    # a larger epsilon would change the norms that the design counts on
    need(c.rms_norm_eps <= 1e-5, f"rms_norm_eps 1e-5 or less, got {c.rms_norm_eps:g}")
    k = knobs.num_classes
    codes = {
        "q_lora_rank": k + 2,
        "qk_nope_head_dim": k + 2,
        "kv_lora_rank": 2 * k + 14,
        "v_head_dim": k + 1,
    }
    for name, count in codes.items():
        size = getattr(c, name)
        need(size >= count, f"{name} {count} or more for {k} classes, got {size}")
    need(
        recipe.tokenizer_vocab_size >= WORDS + SPECIAL,
        f"tokenizer_vocab_size {WORDS + SPECIAL} or more, got {recipe.tokenizer_vocab_size}",
    )
    Basis(c.hidden_size, k)
    require(c, where)
    widths = {
        "intermediate_size": (c.intermediate_size, k * (k + 1) + 1),
        "moe_intermediate_size": (
            c.moe_intermediate_size * (c.n_shared_experts or 1),
            (MIDDLE + 1) * (k + 1) + k + 2,
        ),
    }
    for name, (width, count) in widths.items():
        need(width >= count, f"{name} {count} or more for {k} classes, got {width}")
    offsets = {
        name: getattr(knobs, name)
        for name in ("offset_y", "offset_y_far", "offset_z", "offset_q", "offset_w")
    }
    need(knobs.offset_y < knobs.offset_y_far, f"offset_y below offset_y_far, got {offsets}")
    need(max(offsets.values()) < knobs.context, f"offsets within context, got {offsets}")
    need(len(set(offsets.values())) == len(offsets), f"offsets that differ, got {offsets}")
    need(
        knobs.context <= c.max_position_embeddings,
        f"context within max_position_embeddings {c.max_position_embeddings}, got {knobs.context}",
    )
    if isinstance(knobs.acceptance, tuple):
        rates = len(knobs.acceptance)
        need(1 <= rates <= STEPS, f"acceptance of 1 to {STEPS} positions, got {rates}")
