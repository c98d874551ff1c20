"""Every small change that can be made to a source file. Sentences, annotations and decorators are left alone."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

TOKENS = {
    ast.Lt: ("<", ["<=", ">"]), ast.LtE: ("<=", ["<", ">="]), ast.Gt: (">", [">=", "<"]), ast.GtE: (">=", [">", "<="]),
    ast.Eq: ("==", ["!="]), ast.NotEq: ("!=", ["=="]), ast.Is: ("is", ["is not"]), ast.IsNot: ("is not", ["is"]),
    ast.In: ("in", ["not in"]), ast.NotIn: ("not in", ["in"]), ast.And: ("and", ["or"]), ast.Or: ("or", ["and"]),
    ast.Add: ("+", ["-"]), ast.Sub: ("-", ["+"]), ast.Mult: ("*", ["/"]), ast.Div: ("/", ["*"]), ast.FloorDiv: ("//", ["*"]),
    ast.Mod: ("%", ["*"]), ast.Pow: ("**", ["*"]), ast.BitAnd: ("&", ["|"]), ast.BitOr: ("|", ["&"]),
}  # fmt: skip
OPPOSITE = {"min": "max", "amin": "amax", "minimum": "maximum", "all": "any", "argmin": "argmax", "floor": "ceil"}
OPPOSITE |= {after: before for before, after in OPPOSITE.items()}
SENTENCES = {"Text", "warn", "field", "Literal", "cast", "TypeVar"}
Spot = tuple[int, int]


@dataclass(frozen=True)
class Change:
    """Bytes `start` to `end` of a file become one of `choices`."""

    start: int
    end: int
    choices: tuple[str, ...]
    line: int
    lines: Spot | None
    """The first and the last line of the statement around it, or of its head if it contains others; of a parameter's default
    the first line of the function, decorators included. None for what runs while importing."""

    def apply(self, source: bytes, random: Random) -> bytes:
        return source[: self.start] + random.choice(self.choices).encode() + source[self.end :]


def changes(source: bytes) -> list[Change]:
    """Every change that can be made to a file, in the order of the text."""
    return sorted(set(Finder(source).visit(ast.parse(source), None)), key=lambda c: (c.start, c.end, c.choices))


class Finder:
    """Walks the syntax tree of one file."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.lines = [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def span(self, node: ast.AST) -> Spot:
        return self.lines[node.lineno - 1] + node.col_offset, self.lines[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def visit(self, node: ast.AST, lines: Spot | None) -> Iterator[Change]:
        if lines is not None and isinstance(node, ast.stmt):
            inside = getattr(node, "body", None)
            lines = node.lineno, max(node.lineno, inside[0].lineno - 1) if inside else node.end_lineno
        for spot, choices in self.at(node):
            yield Change(*spot, tuple(choices), self.source.count(b"\n", 0, spot[0]) + 1, lines)
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines = first, first
        for child in self.children(node):
            yield from self.visit(child, lines)

    def children(self, node: ast.AST) -> list[ast.AST]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
            return []
        if isinstance(node, ast.Call) and (word_of(node.func) in SENTENCES or self.text(node).startswith("Text(")):
            return []
        if isinstance(node, ast.AugAssign) and self.text(node.target) == "__all__":
            return []
        if isinstance(node, ast.If) and "TYPE_CHECKING" in self.text(node.test):
            return []
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and self.is_type(node.value):
            return []
        left_out = {"annotation", "returns", "decorator_list", "bases"}
        inner = (value for name, value in ast.iter_fields(node) if name not in left_out)
        return [c for value in inner for c in (value if isinstance(value, list) else [value]) if isinstance(c, ast.AST)]

    def is_type(self, value: ast.expr) -> bool:
        """Whether an assigned value is an alias of types, such as `dict[str, float | None]`."""
        names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        only = all(isinstance(n, ast.Name | ast.Attribute | ast.Subscript | ast.BinOp | ast.Tuple | ast.List | ast.Constant
                              | ast.expr_context | ast.operator) for n in ast.walk(value))  # fmt: skip
        return only and bool(names & {"dict", "list", "tuple", "Callable", "Sequence", "Literal", "Tensor"})

    def at(self, node: ast.AST) -> Iterator[tuple[Spot, list[str]]]:
        """The changes of one node: which bytes, and what may stand there instead."""
        if isinstance(node, ast.stmt):
            yield from self.statement(node)
        elif isinstance(node, ast.Call):
            yield from self.call(node)
        elif isinstance(node, ast.Constant):
            yield from self.constant(node)
        elif isinstance(node, ast.Slice):
            for bound in (node.lower, node.upper):
                if bound is not None and not isinstance(bound, ast.Constant):
                    yield self.span(bound), [f"{self.text(bound)} + 1", f"{self.text(bound)} - 1"]
        else:
            yield from self.operator(node)

    def statement(self, node: ast.stmt) -> Iterator[tuple[Spot, list[str]]]:
        match node:
            case ast.AugAssign(target=ast.Name(id="__all__")):
                return
            case ast.If(test=test) | ast.While(test=test):
                yield self.span(test), [f"(not ({self.text(test)}))"]
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                truth = isinstance(value, ast.Compare | ast.BoolOp) or self.text(value).startswith(("not ", "bool("))
                negated = [f"-({self.text(value)})"] if isinstance(value, ast.BinOp) else []
                yield self.span(value), [f"not ({self.text(value)})"] if truth else ["None", *negated]
            case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break() | ast.Raise():
                yield self.span(node), ["pass"]
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield self.span(node), ["pass"]

    def operator(self, node: ast.AST) -> Iterator[tuple[Spot, list[str]]]:
        match node:
            case ast.Compare(left=left, ops=[op, *_], comparators=[right, *_]) if type(op) in TOKENS:
                yield self.between(left, right, op)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in TOKENS:
                yield self.between(left, right, op)
            case ast.BoolOp(op=op, values=[left, right, *_]):
                yield self.between(left, right, op)
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                yield (self.span(node)[0], self.span(operand)[0]), [""]
            case ast.IfExp(test=test):
                yield self.span(test), [f"(not ({self.text(test)}))"]
            case ast.comprehension(ifs=[test, *_]):
                yield self.span(test), ["True"]

    def constant(self, node: ast.Constant) -> Iterator[tuple[Spot, list[str]]]:
        match node.value:
            case bool(value):
                yield self.span(node), [str(not value)]
            case int(value):
                yield self.span(node), [str(value + 1), str(value - 1)]
            case float(value):
                yield self.span(node), [repr(value * 1.1 or 1.0)]

    def call(self, node: ast.Call) -> Iterator[tuple[Spot, list[str]]]:
        """`min` for `max`, and the first two arguments in the other order."""
        if (word := word_of(node.func)) in OPPOSITE:
            end = self.span(node.func)[1]
            yield (end - len(word), end), [OPPOSITE[word]]
        plain = not any(isinstance(a, ast.Starred | ast.Constant) or "Text(" in self.text(a) for a in node.args[:2])
        if len(node.args) >= 2 and plain and word not in SENTENCES | {"isinstance", "getattr", "hasattr", "setattr"}:
            (start, _), (_, end) = self.span(node.args[0]), self.span(node.args[1])
            yield (start, end), [f"{self.text(node.args[1])}, {self.text(node.args[0])}"]

    def between(self, left: ast.expr, right: ast.expr, op: ast.AST) -> tuple[Spot, list[str]]:
        """The operator between two operands; brackets around them stay."""
        word, others = TOKENS[type(op)]
        start, end = self.span(left)[1], self.span(right)[0]
        at = start + self.source[start:end].index(word.encode())
        return (at, at + len(word)), others


def word_of(name: ast.expr) -> str:
    """`max` of both `max(…)` and `torch.max(…)`."""
    return getattr(name, "id", getattr(name, "attr", ""))
