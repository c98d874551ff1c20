"""The text a check-up reads when it is given none: our own, in both languages."""

PASSAGE = """\
A thermometer does not make the room warm; it tells you whether to open a window. Attention has a temperature too. Each
query looks at every key, scores it with a dot product, and turns the scores into weights. When the scores lie close
together the weights are nearly equal, and the answer is an average of everything. When they lie far apart, one weight is
almost one and the others almost nothing: the answer is a single key, and a small change of the question changes nothing
at all. Somewhere between the two a head can choose and can still learn to choose differently. The designers of the first
transformer divided every score by the square root of the dimension, so that longer vectors would not push the scores
apart merely by being longer. It is one multiplication, easily forgotten, easily done twice, and nothing crashes when it
is wrong. The model only learns a little less, a little later, for reasons nobody sees.

温度计并不会让房间变暖，它只告诉你是否该开窗。注意力也有温度。每个查询都会看遍所有的键，用点积给它们打分，再把分数变成权重。
分数彼此接近时，权重几乎相等，得到的答案是所有内容的平均；分数相差很大时，一个权重接近一，其余几乎为零，答案就是某一个键，
而问题稍有变化，答案也毫无变化。在这两者之间，注意力头既能选择，又能学会作出不同的选择。最初设计变换器的人把每个分数除以维度的
平方根，使更长的向量不至于仅仅因为更长而拉开分数。这只是一次乘法，容易忘记，也容易做两遍，而且出错时什么都不会崩溃。模型只是
学得少一点、慢一点，而没有人看得出原因。

A kettle sings before it boils. The gardener counts the rings of an old stump, and the river keeps no record of the stones
it has moved. On the third morning the letters arrived all at once: one from the harbour, two from the mountains, and one
without a stamp that nobody in the village would open. Numbers help here: 3, 14, 159 and 2653 are easy to repeat, and a name
said once at the beginning, Margarethe, may be asked for again at the end. Who was it that counted the rings?
"""
