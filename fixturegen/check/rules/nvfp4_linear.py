"""NVFP4 block shapes of linear layers."""

from fixturegen.check.inputs import Linear
from fixturegen.check.rule import Rejected, Source, Where, cases, rule


@rule(
    id="nvfp4-groups",
    title="NVFP4 scales cover 16 inputs",
    where=Where(inputs={"scheme": "nvfp4"}),
    otherwise=Rejected("features? size is not (a )?multiple of 16"),
    source=Source("vllm", "vllm/model_executor/layers/quantization/modelopt.py", "create_weights"),
    cases=cases(
        Linear(scheme="nvfp4"),
        holds=[{"input_size": 7168}],
        breaks=[{"input_size": 24}],
        at_limit=[{"input_size": 16}, {"input_size": 48}],
        past_limit=[{"input_size": 15}, {"input_size": 17}],
    ),
)
def nvfp4_groups(x: Linear) -> bool:
    """The input width of every NVFP4 layer on one rank.

    Which layers are NVFP4 is the quantiser's choice (`exclude_modules`); published DeepSeek
    checkpoints keep attention in bfloat16. All are checked here.
    """
    return x.input_size % 16 == 0
