"""A sweep small enough to be trained in a second, and its specification."""

from isotherm.record.sweep import Trial

SMALL = Trial(
    model="decoder", task="copy", width=14, heads=2, layers=1, vocabulary=11, length=3, batch=2, steps=5, warmup=1
)
SPEC = """
title = "a small sweep"
[report]
x = "lr"
series = ["rule"]
[base]
model = "decoder"
task = "copy"
width = 14
heads = 2
layers = 1
vocabulary = 11
length = 3
batch = 2
steps = 5
warmup = 1
[grid]
rule = ["none", "1/sqrt(d)", "qk-norm*1/sqrt(d)"]
lr = [1e-3, 1e-2]
seed = [0, 1]
[quick]
steps = 2
seed = [0]
"""
