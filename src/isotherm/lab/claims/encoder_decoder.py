"""The original Transformer as an encoder and a decoder: it runs, it learns, and it computes what PyTorch's layers compute."""

from math import log

import torch
from torch import Tensor

from isotherm.lab import reference
from isotherm.lab.claim import Claim, Result, Setting, conclude
from isotherm.lab.figures import training_loss
from isotherm.lab.interval import effect_size, interval, over_seeds
from isotherm.lab.mathml import equation, row, sub
from isotherm.lab.numerals import numeral, percent
from isotherm.language import Text
from isotherm.models import Shape, Transformer
from isotherm.record import Figure, Measured, Step
from isotherm.record.sweep import Trial, TrialOutcome
from isotherm.train.sweep import run_trials

AGREE = 1e-10
"""Largest difference of two float64 implementations that is only rounding."""
RIGHT = 0.9
"""Share of held-out words that must be right."""


def experiment(setting: Setting) -> Result:
    """Compare outputs and gradients with PyTorch's layers; then train several seeds on a toy translation."""
    pairs = [_compare(setting, seed) for seed in range(setting["seeds"])]
    outputs, gradients, leaks = (list(column) for column in zip(*pairs, strict=True))
    setting.progress(0.1)
    trained = _train(setting)
    agrees = max(outputs) < AGREE and max(gradients) < AGREE and max(leaks) == 0
    right = [outcome.accuracy or 0.0 for outcome in trained]
    learns = interval(right).low > RIGHT
    numbers = _measured(setting, trained, (outputs, gradients, leaks), agrees, learns)
    return conclude(agrees and learns, _sentence(outputs, right), numbers, [_figure(setting, trained)])


def _model(setting: Setting, seed: int) -> Transformer:
    """In the paper's own form, LayerNorm after the sum."""
    width, heads, layers = (setting[name] for name in ("width", "heads", "layers"))
    shape = Shape(setting["vocabulary"], width, heads, layers, longest=64, norm="post")
    with torch.random.fork_rng():
        torch.manual_seed(setting.seed * 1000 + seed)
        return Transformer(shape).double()


def _compare(setting: Setting, seed: int) -> tuple[float, float, float]:
    """Largest differences of logits and of the embedding's gradient; how much a later word changes an earlier prediction."""
    model, generator = _model(setting, seed), setting.generator(seed)
    source, target = (torch.randint(3, setting["vocabulary"], (3, n), generator=generator) for n in (7, 5))
    source[1, 4:] = 0
    ours = model(source, target)
    theirs = _by_torch(model, source, target)
    weight = torch.randn(ours.shape, generator=generator, dtype=ours.dtype)
    first, second = (
        torch.autograd.grad((logits * weight).sum(), model.embedding.weight, retain_graph=True)[0]
        for logits in (ours, theirs)
    )
    later = target.clone()
    later[:, -1] = 3 + (later[:, -1] - 2) % (setting["vocabulary"] - 3)
    leak = (model(source, later)[:, :-1] - ours[:, :-1]).abs().max().item()
    return (ours - theirs).abs().max().item(), (first - second).abs().max().item(), leak


def _by_torch(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """The same embeddings through PyTorch's encoder and decoder layers."""
    padding = source == model.shape.pad
    memory = reference.encode(model.encoder, model.shape, model.embedding(source), padding)
    states = reference.decode(model.decoder, model.shape, model.embedding(target), memory, padding)
    return model.embedding.logits(states)


def _train(setting: Setting) -> list[TrialOutcome]:
    names = ("task", "width", "heads", "layers", "vocabulary", "length", "batch", "steps", "lr", "warmup")
    given = {name: setting[name] for name in names}
    trials = [Trial(model="transformer", seed=setting.seed * 1000 + seed, **given) for seed in range(setting["seeds"])]
    count = setting.counter(len(trials) * setting["steps"], done=0.1)
    return run_trials(trials, device=setting.device, progress=count)


def _measured(
    setting: Setting, trained: list[TrialOutcome], compared: tuple[list[float], ...], agrees: bool, learns: bool
) -> tuple[Measured, ...]:
    outputs, gradients, leaks = compared
    start = [outcome.held_out_start or 0.0 for outcome in trained]
    end = [outcome.held_out or 0.0 for outcome in trained]
    guess = log(setting["vocabulary"] - 3)
    return (
        over_seeds(OUTPUT, outputs, predicted=0.0, holds=agrees),
        over_seeds(GRADIENT, gradients, predicted=0.0, holds=agrees),
        over_seeds(LEAK, leaks, predicted=0.0, holds=agrees),
        over_seeds(START, start, predicted=guess),
        over_seeds(END.format(steps=setting["steps"]), end),
        over_seeds(ACCURACY, [outcome.accuracy or 0.0 for outcome in trained], holds=learns),
        Measured(EFFECT, effect_size(start, end)),
    )


def _figure(setting: Setting, trained: list[TrialOutcome]) -> Figure:
    steps = [step for step, _ in trained[0].losses]
    values = [[outcome.losses[i][1] or 0.0 for outcome in trained] for i in range(len(steps))]
    caption = Text(
        "The encoder–decoder learns to write a sentence backwards: loss over training, with the 95 % band over seeds.",
        "编码器–解码器学习把句子倒着写：训练损失，带按种子的 95 % 区间。",
    )
    y, guess = Text("loss (nats per word)", "损失（nat/词）"), log(setting["vocabulary"] - 3)
    return training_loss("encoder-decoder-loss", caption, y, steps, values, guess, steps[-1])


def _sentence(outputs: list[float], right: list[float]) -> Text:
    return Text(
        "Encoder and decoder give PyTorch's own numbers (largest difference {worst}), and in training every seed "
        "learns the toy translation: {right} of held-out words are right.",
        "编码器与解码器给出与 PyTorch 相同的数值（最大差 {worst}），训练中每个种子都学会了玩具翻译：留出的词有 {right} "
        "正确。",
    ).format(worst=numeral(max(outputs), 1), right=percent(interval(right).mean))


OUTPUT = Text("largest difference from torch.nn's layers: logits", "与 torch.nn 各层的最大差：logits")
GRADIENT = Text("largest difference from torch.nn's layers: gradient", "与 torch.nn 各层的最大差：梯度")
LEAK = Text("change of earlier predictions by a later word", "后面的词对前面预测的改变")
START = Text("held-out loss before training (nats a word)", "训练前的留出损失（nat/词）")
END = Text("held-out loss after {steps} steps (nats a word)", "{steps} 步后的留出损失（nat/词）")
ACCURACY = Text("held-out words right", "留出的词的正确率")
EFFECT = Text("Cohen's d, loss before against after", "Cohen's d，训练前后的损失")
STEPS = (
    Step(
        Text("The encoder reads: every source word looks at all others.", "编码器负责读：每个源词看所有其他源词。"),
        equation("M", row("Encoder ( x )")),
    ),
    Step(
        Text(
            "The decoder writes: each word sees the ones before it and, by cross-attention, the whole source.",
            "解码器负责写：每个词看它之前的词，并通过交叉注意力看整个源句。",
        ),
        equation(row("p ( y_t )"), row("softmax ( E · Decoder (", sub("y", "1 … t − 1"), ", M ) )")),
    ),
)
CLAIM = Claim(
    id="encoder-decoder",
    title=Text("The original Transformer is an encoder and a decoder", "原始 Transformer 是编码器加解码器"),
    question=Text("What did the first Transformer look like?", "最初的 Transformer 是什么样子？"),
    statement=Text(
        "The original Transformer is a sequence-to-sequence model built as an encoder and a decoder, made for machine "
        "translation.",
        "原始 Transformer 指的是一个基于 Encoder-Decoder 框架的 Seq2Seq 模型，用于解决机器翻译任务。",
    ),
    sources=("003",),
    hypothesis=Text(
        "For every seed the model's logits and gradients equal those of torch.nn's encoder and decoder layers to "
        "10⁻¹⁰, no later word changes an earlier prediction, and after training over 90 % of held-out words are right "
        "(95 % interval).",
        "对每个种子，模型的 logits 与梯度同 torch.nn 的编码器层、解码器层相差不到 10⁻¹⁰，后面的词不改变前面的预测，且训"
        "练后留出的词有 90 % 以上正确（95 % 区间）。",
    ),
    expected="confirmed",
    experiment=experiment,
    quick={
        "task": "reverse",
        "width": 32,
        "heads": 4,
        "layers": 1,
        "vocabulary": 14,
        "length": 6,
        "batch": 32,
        "steps": 200,
        "lr": 5e-3,
        "warmup": 20,
        "seeds": 5,
    },
    full={"task": "align", "width": 64, "layers": 2, "vocabulary": 34, "length": 12, "steps": 800, "seeds": 8},
    steps=STEPS,
)
