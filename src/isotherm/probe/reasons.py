"""Why an attention module was not seen."""

from isotherm.language import Text

FAILED = Text("the probe failed while looking at it: {error}", "探测时出错：{error}")
MISMATCH = Text(
    "what was read from the call ({what}) does not give the model's own result again",
    "用从调用中读到的内容（{what}）算不出模型自己的结果",
)
OTHER_SOFTMAX = Text(
    "it has a softmax over scores that could not be followed back to one q·k",
    "其中有一个 softmax，其分数无法追溯到单一的 q·k",
)
IN_A_TRANSFORM = Text(
    "it attends inside vmap or another transform of torch.func, where nothing can be read",
    "它在 vmap 或 torch.func 的其他变换中做注意力，那里无法读取",
)
OPAQUE = Text(
    "between its projections and its result something runs that cannot be seen: {what}",
    "在它的投影与结果之间有一段看不到的计算：{what}",
)
KERNEL = Text("a kernel of its own, compiled code or another library", "自带的内核、编译后的代码或其他库")
NO_SOFTMAX = Text(
    "it multiplies activations as attention does, but normalises no row: without a softmax there is no temperature",
    "它像注意力那样将激活相乘，但没有对任何一行归一化：没有 softmax，也就没有温度",
)
ELSEWHERE = Text(
    "the forward ran it in another thread, which a probe does not follow",
    "前向在另一个线程中运行它，探针不跟踪其他线程",
)
IN_BLOCKS = Text(
    "it computes each row in several blocks of keys and divides by the sum at the end, so no whole row can be read",
    "它将每一行按键分成几块计算，最后才除以总和，因此读不到完整的一行",
)
SCATTERED = Text(
    "it adds up exponentials of edges or other groups by scatter, and which of them are one row could not be read",
    "它用 scatter 将边或其他分组的指数相加，读不出哪些属于同一行",
)
IN_PART = Text(
    "it changes some of the rows of a softmax and divides these by their sums again, so no row can be read",
    "它改动一次 softmax 的部分行，再将这些行除以各自的总和，因此读不到任何一行",
)
AFTERWARDS = Text(
    "it divides by sums of exponentials over positions only after it has used them, so no row can be read",
    "它先使用指数，之后才除以各位置指数之和，因此读不到任何一行",
)
