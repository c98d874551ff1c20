"""Put errors into words: one line, in both languages."""

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
    if isinstance(error, click.UsageError) and error.ctx is not None and isinstance(error.ctx.command, click.Group):
        typed = next((word for word in error.message.split("'")[1:2]), "")
        if typed:
            return _no_such_command(typed, error.ctx.command.list_commands(error.ctx))
    return Text("{why}", "命令有误：{why}").format(why=error.format_message())


def _parameter(error: click.ClickException) -> str:
    parameter = getattr(error, "param", None)
    if isinstance(parameter, click.Argument):
        return str(parameter.name).upper()
    return parameter.opts[0] if isinstance(parameter, click.Parameter) else ""


def _expected(error: click.BadParameter) -> Text | str:
    kind = error.param.type if error.param is not None else None
    if isinstance(kind, click.Choice):
        return " | ".join(str(choice) for choice in kind.choices)
    if isinstance(kind, click.IntRange):
        least = Text("a whole number from {low} to {high}", " {low} 到 {high} 之间的整数")
        return least.format(low=kind.min, high="∞" if kind.max is None else kind.max)
    if kind is click.INT:
        return Text("a whole number", "整数")
    return Text("a valid value ({why})", "有效的值（{why}）").format(why=error.message)


def _no_such_command(typed: str, known: list[str]) -> Text:
    near = get_close_matches(typed, known, n=1)
    hint = Text(" (did you mean {near}?)", "（是否要用 {near}？）").format(near=near[0]) if near else Text("", "")
    message = Text(
        "no such command: {typed}{hint}; see isotherm --help", "没有这个命令：{typed}{hint}；见 isotherm --help"
    )
    return message.format(typed=typed, hint=hint)
