"""Every threshold behind a state or finding, with its source."""

from dataclasses import dataclass

from isotherm.language import Text


@dataclass(frozen=True)
class Threshold:
    """A number and the reason for it."""

    value: float
    reason: Text


SATURATED = 0.05
"""A head whose median gate is below this: half its rows pass less than a twentieth of the gradient."""
DIFFUSE = 0.98
"""A head whose median entropy is above this part of ln n hardly tells its keys apart."""
SINK = 0.3
"""A head with more than this on the first key beyond its even share (attention sinks, Xiao et al. 2023, arXiv:2309.17453)."""
LARGE = Threshold(
    100.0,
    Text("Kimi K2 clips logits at 100 (arXiv:2507.20534).", "Kimi K2 在 100 处裁剪 logits（arXiv:2507.20534）。"),
)
DIVERGING = Threshold(
    1e4,
    Text(
        "Every run whose logits passed 1e4 diverged (Wortsman et al. 2023, arXiv:2309.14322).",
        "logits 超过 1e4 的训练全部发散（Wortsman 等 2023，arXiv:2309.14322）。",
    ),
)
HEADROOM = Threshold(
    16.0,
    Text(
        "float16 ends at 65504; below a factor of 16 one hot batch is enough to overflow.",
        "float16 的上限是 65504；余量不足 16 倍时，一个偏热的批次就足以溢出。",
    ),
)
SCALE_TOLERANCE = Threshold(
    0.02,
    Text(
        "Two per cent: rounding is far below it, and the smallest scale bug on record (a scalar of 256 for 224) is 7 %.",
        "百分之二：舍入误差远小于此，而有记录的最小缩放错误（224 写成 256）是 7 %。",
    ),
)
SAME_STATISTICS = Threshold(
    1e-2,
    Text(
        "One per cent of a layer's statistics: implementations of one formula differ by rounding, which is far below it.",
        "各层统计量的百分之一：同一公式的不同实现只差舍入误差，远小于此。",
    ),
)
FREEZING = Text(
    "Beyond a logit spread of √(2 ln n) the softmax of Gaussian logits is frozen (random energy model, Derrida 1981).",
    "logits 标准差超过 √(2 ln n) 时，高斯 logits 的 softmax 冻结（随机能量模型，Derrida 1981）。",
)
FINITE = Text("Any NaN or Inf is one too many.", "出现任何 NaN 或 Inf 都不应该。")
SEPARATE = Text("The members of a batch are separate inputs.", "批次中的各个成员是彼此独立的输入。")
SEEN = Text("What was not seen was not checked.", "没有看到的，就没有检查。")
LOADED = Text("What was not loaded was not checked.", "没有加载的，就没有检查。")
APART = Threshold(
    6.0,
    Text(
        "Six robust deviations (of the logarithm, from the siblings' median): at most 2.7 by the weights and 3.7 by the vectors"
        " were seen in 207 stock architectures as built and in eight trained models, and 20 times the weights give 12.",
        "六倍稳健偏差（取对数，相对同类的中位数）：在 207 种新建的标准架构与八个已训练模型中，按权重计至多 2.7，按向量计至多"
        " 3.7；而权重乘以 20 会达到 12。",
    ),
)
"""Measured with transformers 5.22 (five layers each, freshly initialised) and with MiniLM, AntiBERTy 0.1.3, rxnfp 0.1.0 (three
models), rxnmapper 0.4.3 and Sapiens 1.0.3 (two models). The largest ratios to the siblings' median there: weights of a layer
1.9 and 0.51, weights of a head 2.1 and 0.45, q or k vectors of a head 3.6 and 0.43."""
LEAST_DEVIATION_OF_WEIGHTS, LEAST_DEVIATION_OF_VECTORS = 0.25, 0.35
"""A robust deviation is no less than this: siblings that hardly differ would make trifles stand apart. So what stands apart is
at least 4.5 (weights) or 8.2 (vectors) times its siblings' median, or as many times smaller."""
SIBLING_LAYERS, SIBLING_HEADS = 3, 4
"""How many layers, or heads of a layer, there must be to say that one of them stands apart."""
