"""The arrows DESIGN.md draws, held: a module may import only from its own layer's row or below, as drawn."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "isotherm"
OPTIONAL = {"triton", "transformers", "matplotlib", "ray", "lightning", "tensorboard", "safetensors"}


def drawn() -> dict[str, set[str]]:
    """The table of arrows in DESIGN.md: part → parts it may import."""
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| ([^|]*) \|", text.split("## Arrows")[1].split("\n## ")[0], re.M)
    return {part: set(re.findall(r"`([\w.]+)`", allowed)) for part, allowed in rows}


def part_of(module: str) -> str:
    """isotherm.ops.tiles → ops; the package's own façade is «isotherm»."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "isotherm"


def imports(path: Path, source: str) -> set[str]:
    """Modules of isotherm that a file imports, anywhere in it, relative imports resolved."""
    package = ["isotherm", *path.relative_to(SOURCE).parent.parts]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {_home(alias.name) for alias in node.names} if module == "isotherm" else {module}
    return {name for name in found if name.split(".")[0] == "isotherm"}


def _home(name: str) -> str:
    """What `from isotherm import name` reads: a part, or the façade itself."""
    is_part = (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").exists()
    return f"isotherm.{name}" if is_part else "isotherm"


def wrong_arrows(path: Path, source: str) -> list[str]:
    """Imports of a file that DESIGN.md does not draw."""
    relative = path.relative_to(SOURCE).with_suffix("")
    part = "isotherm" if relative.parts == ("__init__",) else relative.parts[0]
    allowed = drawn().get(part)
    if allowed is None:
        return [f"{part} is not in DESIGN.md's table of arrows"]
    return [
        f"{part} → {part_of(name)}" for name in sorted(imports(path, source)) if part_of(name) not in allowed | {part}
    ]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_import_is_an_arrow_that_design_draws(path):
    assert wrong_arrows(path, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "arrow"),
    [
        ("from isotherm.cli import main", "stats → cli"),
        ("import isotherm.ops.api", "stats → ops"),
        ("from isotherm import ops", "stats → ops"),
        ("from .ops import attention", "stats → ops"),
        ("def f():\n    from isotherm.report import terminal", "stats → report"),
    ],
)
def test_the_arrow_test_can_fail(source, arrow):
    assert wrong_arrows(SOURCE / "stats.py", source) == [arrow]


def test_a_part_that_design_does_not_name_fails():
    assert wrong_arrows(SOURCE / "helpers.py", "") == ["helpers is not in DESIGN.md's table of arrows"]


def test_the_arrows_drawn_have_no_cycle():
    arrows = drawn()
    assert {"ops", "stats", "scale", "cli"} <= arrows.keys()
    done: set[str] = set()
    while len(done) < len(arrows):
        free = {part for part, allowed in arrows.items() if part not in done and allowed <= done}
        assert free, f"cycle among {arrows.keys() - done}"
        done |= free


def test_implementations_never_import_one_another():
    names = {"reference", "blockwise", "sdpa"}
    for name in names:
        path = SOURCE / "ops" / f"{name}.py"
        others = {f"isotherm.ops.{other}" for other in names - {name}}
        assert not imports(path, path.read_text(encoding="utf-8")) & others


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}; import sys; print('\\n'.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_isotherm_loads_nothing_heavy():
    assert not loaded_by("import isotherm") & (OPTIONAL | {"torch", "numpy", "click", "rich"})


def test_using_attention_loads_no_optional_part():
    loaded = loaded_by("import isotherm; isotherm.attention; isotherm.scale; isotherm.theory; isotherm.softmax")
    assert "torch" in loaded
    assert not loaded & OPTIONAL


def test_files_stay_short():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py")}
    assert {str(path): n for path, n in lengths.items() if n > 400} == {}


def functions(source: str) -> list[tuple[str, int, int]]:
    """Each function's name, lines and parameters."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            found.append((node.name, node.end_lineno - node.lineno + 1, len(arguments)))
    return found


def too_large(path: Path, source: str) -> list[str]:
    """Functions above 50 lines or 10 parameters. Kernels and the public calls may be larger."""
    if path.stem.endswith("kernel"):
        return []
    public = ("attention", "check")
    return [
        name for name, lines, parameters in functions(source) if (lines > 50 or parameters > 10) and name not in public
    ]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_function_is_too_large(path):
    assert too_large(path, path.read_text(encoding="utf-8")) == []


def test_the_size_test_can_fail():
    assert too_large(SOURCE / "stats.py", "def f():\n" + "    x = 1\n" * 50) == ["f"]
    assert too_large(SOURCE / "stats.py", "def f(a, b, c, d, e, f, g, h, i, j, *, k): ...") == ["f"]


def private_names(path: Path, source: str) -> list[str]:
    """Names with a leading underscore that a file takes from another part, by import or as an attribute of its module."""
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    foreign, found = {}, []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("isotherm"):
            continue
        for alias in node.names:
            home = node.module if node.module != "isotherm" else _home(alias.name)
            if part_of(home) in (part, "isotherm"):
                continue
            foreign[alias.asname or alias.name] = home
            if alias.name.startswith("_"):
                found.append(f"{home}.{alias.name}")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in foreign:
            private = node.attr.startswith("_") and not node.attr.startswith("__")
            found += [f"{foreign[node.value.id]}.{node.value.id}.{node.attr}"] if private else []
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_part_takes_private_names_of_another(path):
    assert private_names(path, path.read_text(encoding="utf-8")) == []


def test_the_private_name_test_can_fail():
    path = SOURCE / "probe" / "observe.py"
    assert private_names(path, "from isotherm.ops.api import _solve") == ["isotherm.ops.api._solve"]
    assert private_names(path, "from isotherm.ops import api\napi._solve()") == ["isotherm.ops.api._solve"]
    assert private_names(path, "from isotherm.probe.frames import _is_fused") == []


def test_names_do_not_repeat():
    """No two classes of one name, and no module beside a folder of its name."""
    classes: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
        assert not path.with_suffix("").is_dir(), path
    assert {name: homes for name, homes in classes.items() if len(homes) > 1} == {}
