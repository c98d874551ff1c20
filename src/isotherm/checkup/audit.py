"""The scale in force against the scale declared.

The scale in force is the true multiplier between the projections' q·k and the logits: the scale passed to the kernel,
times every factor that q and k picked up between projection and kernel. This covers a query scaled early, d^-¼ on both q
and k, and YaRN's factor inside the rotary embedding.
"""

from isotherm.checkup.declare import CONVENTION, Declared, first_source
from isotherm.checkup.thresholds import SCALE_TOLERANCE
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.record import ScaleAudit

UNTRACED = Text(
    "the projection of {which} was not found, so the scale in force is not known",
    "没有找到 {which} 的投影，因此无法得知实际的缩放",
)
UNFOLLOWED = Text(
    "the logits could not be followed back to one q·k, so the scale in force is not known",
    "logits 无法追溯到单一的 q·k，因此无法得知实际的缩放",
)
NOT_AFFINE = Text(
    "the logits are not a number times q·k plus terms that could be followed, so no scale can be given",
    "logits 不能写成 q·k 的倍数加上可跟踪的项，因此给不出缩放",
)
NORMALISED = Text(
    "q and k are normalised first; the number multiplies the normalised q·k",
    "q 与 k 先经归一化；此数乘在归一化之后",
)
MULTIPLIED = {
    "by-head": Text("each head multiplies q·k by a number of its own", "每个头各用自己的数乘 q·k"),
    "by-query": Text("each query multiplies q·k by a number of its own", "每个查询各用自己的数乘 q·k"),
}
PER_QUERY = Text("a factor that depends on the query's position is applied as well", "另有随查询位置变化的因子")
UNDECLARED_NORM = Text(
    "q and k are normalised, and no configuration declares the scale", "q 与 k 经过归一化，而配置没有说明其缩放"
)


def audit(capture: Capture, declared: Declared) -> ScaleAudit:
    """One layer's scale as passed to the kernel, in force, and declared, and whether the last two agree."""
    handed = capture.problem.scale
    in_force, note = effective(capture)
    agrees = None
    if in_force is not None and declared.value is not None:
        agrees = abs(in_force / declared.value - 1) <= SCALE_TOLERANCE.value
    normalised = "normalised" in (capture.q_factor.kind, capture.k_factor.kind)
    if normalised and first_source(declared.source) == CONVENTION:
        agrees, note = None, UNDECLARED_NORM
    return ScaleAudit(
        passed=handed if capture.passed is None else capture.passed,
        effective=in_force,
        declared=declared.value,
        rule=declared.rule,
        source=declared.source,
        agrees=agrees,
        note=note,
    )


def effective(capture: Capture) -> tuple[float | None, Text | None]:
    """The scale in force, and a note about it. It is None if it is not known; the note then says why."""
    if not capture.affine:
        return None, UNFOLLOWED if capture.affine is None else NOT_AFFINE
    if capture.multiplied is not None:
        return None, MULTIPLIED[capture.multiplied]
    scale = capture.problem.scale
    note = None
    for which, factor in (("q", capture.q_factor), ("k", capture.k_factor)):
        if factor.kind == "untraced":
            return None, UNTRACED.format(which=which)
        if factor.kind == "normalised":
            note = NORMALISED
            scale *= 1.0 if factor.after_norm is None else factor.after_norm
        elif factor.kind == "per-query":
            note = PER_QUERY
        elif factor.value is not None:
            scale *= factor.value
    return scale, note
