"""Put errors into words: one line, in both languages."""

import re
from difflib import get_close_matches

import click

from isotherm.errors import IsothermError
from isotherm.language import Text


def describe(error: click.ClickException | IsothermError | OSError) -> str:
    """The line to print: what was wrong, and what to try."""
    return f"isotherm: {_text(error)}"


def _text(error: click.ClickException | IsothermError | OSError) -> Text | str:
    if isinstance(error, IsothermError):
        return error.text
    if isinstance(error, OSError):
        what = error.filename or Text("the system", "系统")
        return Text("{what}: {why}", "{what}：{why}").format(what=what, why=error.strerror)
    name = _parameter(error)
    if isinstance(error, click.NoSuchOption):
        near = f" ({', '.join(error.possibilities)}?)" if error.possibilities else ""
        return Text("no such option: {name}{near}", "没有这个选项：{name}{near}").format(
            name=error.option_name, near=near
        )
    if isinstance(error, click.MissingParameter):
        return Text("missing: {name}", "缺少：{name}").format(name=name)
    if isinstance(error, click.BadParameter):
        return Text("{name}: expected {what}", "{name}：应为{what}").format(name=name, what=_expected(error))
    if isinstance(error, click.BadOptionUsage):
        needs = Text("{name}: a value is missing", "{name}：缺少值")
        takes = Text("{name} takes no value", "{name} 不带值")
        return (needs if "requires" in error.message else takes).format(name=error.option_name)
    if isinstance(error, click.UsageError) and error.ctx is not None and isinstance(error.ctx.command, click.Group):
        typed = next((word for word in error.message.split("'")[1:2]), "")
        return _no_such_command(typed, error.ctx, error.ctx.command)
    if extra := re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", error.format_message()):
        return Text("one word too many: {words}", "多出的参数：{words}").format(words=extra[1])
    return error.format_message()


def _parameter(error: click.ClickException) -> str:
    parameter = getattr(error, "param", None)
    if isinstance(parameter, click.Argument):
        return (parameter.metavar or str(parameter.name).upper()).strip("[].")
    return parameter.opts[0] if isinstance(parameter, click.Parameter) else ""


def _expected(error: click.BadParameter) -> Text | str:
    kind = error.param.type if error.param is not None else None
    if isinstance(kind, click.Choice):
        return " | ".join(str(choice) for choice in kind.choices)
    if isinstance(kind, click.IntRange | click.FloatRange):
        what = Text("a whole number", "整数") if isinstance(kind, click.IntRange) else Text("a number", "数")
        if kind.max is None:
            return Text("{what} from {low} on", "不小于 {low} 的{what}").format(what=what, low=kind.min)
        between = Text("{what} from {low} to {high}", " {low} 到 {high} 之间的{what}")
        return between.format(what=what, low=kind.min, high=kind.max)
    if kind is click.INT:
        return Text("a whole number", "整数")
    return Text("a valid value ({why})", "有效的值（{why}）").format(why=error.message)


def _no_such_command(typed: str, ctx: click.Context, group: click.Group) -> Text:
    page = f"{ctx.command_path} --help"
    if not typed:
        return Text("a command is missing; see {page}", "缺少命令；见 {page}").format(page=page)
    near = get_close_matches(typed, group.list_commands(ctx), n=1)
    hint = Text(" (did you mean {near}?)", "（是否要用 {near}？）").format(near=near[0]) if near else Text("", "")
    message = Text("no such command: {typed}{hint}; see {page}", "没有这个命令：{typed}{hint}；见 {page}")
    return message.format(typed=typed, hint=hint, page=page)
