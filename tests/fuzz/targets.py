"""One generator of cases for each kind of input. A case must be cheap: it is refused, or reads a file and shows it."""

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from random import Random
from typing import Any

import click

from isotherm.cli import VERBS, program
from isotherm.errors import InputError
from isotherm.record import to_plain
from isotherm.record.files import SEAL, parse_json, sealed
from isotherm.scale import ATLAS
from tests.fuzz import examples
from tests.fuzz.case import KEPT, Case
from tests.fuzz.mutation import ESCAPES, TEXTS, as_json, as_toml, change_bytes, change_tree, value
from tests.report import tuned

WORDS = (
    *TEXTS,
    "x" * 10_000,
    "no-such",
    "./none",
    "none.json",
    "none.toml",
    "a,b",
    "none,1/d",
    "saturated>0.1",
    "8" * 400,
)
WORDS = tuple(word for word in WORDS if word != "\ud800")
"""What may stand anywhere on a command line. NUL cannot, nor can surrogates other than those for undecodable bytes."""
OUTPUTS = ("out/x", "out", "out/a/b", "out/" + "x" * 300, "out/\udcff", "out/温", "out/\x1b[31m", "out/x.json")
PATHS = (*OUTPUTS, "out/", "out/.", "out/./x/../y", "good.json/x", "out/.keep", "out/.keep/x", "out/a\nb")
"""Where a report may be asked for. Never a device: what writes to one by mistake may destroy it."""
LANGUAGES = ((), ("--lang", "en"), ("--lang", "zh"), ("--lang=zh",))
WRITES = {"--html", "--markdown", "--out", "--store", "--csv", "--parquet"}


def rules(random: Random) -> Case:
    """`isotherm rules` with a rule that is valid, nearly valid or nonsense."""
    parts = []
    for _ in range(random.choice([1, 1, 2, 3])):
        part = random.choice([*ATLAS, "x2", "x0.5"])
        for _ in range(random.choice([0, 1, 1, 2])):
            part += random.choice([":", ",", "="]) + str(random.choice([*TEXTS, 1, 2, 2048, -1, 0.5, 1e308, "9" * 400]))
        parts.append(part)
    text = random.choice(["*", " * ", "**", "/", ""]).join(parts)
    if random.random() < 0.3:
        text = change_bytes(text.encode("utf-8", "surrogatepass"), random).decode("utf-8", "replace").replace("\0", "0")
    json_or_not = random.choice([(), (), ("--json",)])
    return Case(("rules", text, *random.choice(LANGUAGES), *json_or_not), {})


def command_lines(random: Random) -> Case:
    """Verbs, options and values put together at random, never so that work begins."""
    verb = random.choice([*VERBS, "data gettext", "data gettext"])
    words, command = verb.split(), program
    for name in words:
        command = command.get_command(None, name)  # type: ignore[arg-type]
    options = [it for it in command.params if isinstance(it, click.Option) and (verb, it.name) != ("watch", "demo")]
    for option in random.choices(options, k=random.randrange(5)):
        words += _option(option, random)
    words += random.choices(WORDS, k=random.choice([0, 1, 1, 2, 3]))
    words += _stop(verb, random)
    if random.random() < 0.1:
        words.insert(random.randrange(len(words)), random.choice([*WORDS, "--help", "--version", "--lang"]))
    return Case((*random.choice(LANGUAGES), *words), {"file": b"", "out/.keep": b""})


def _option(option: click.Option, random: Random) -> list[str]:
    name = random.choice(option.opts)
    if random.random() < 0.05:
        name = name[: random.randrange(1, len(name) + 1)] + random.choice(["", "x", "=", *ESCAPES])
    if option.is_flag:
        return [name] if random.random() < 0.95 else [f"{name}=1"]
    if name in WRITES:
        given = random.choice(OUTPUTS)
    elif isinstance(option.type, click.Choice) and random.random() < 0.5:
        given = random.choice(list(option.type.choices))
    else:
        given = str(random.choice([*WORDS, *range(-2, 5)]))
    return [f"{name}={given}"] if random.random() < 0.3 else [name, given]


def _stop(verb: str, random: Random) -> list[str]:
    """Words that end the command before it computes anything, last on the line so that they count."""
    return {
        "check": ["--fail-on", random.choice(["nonsense", "saturated>", *(f"x{escape}" for escape in ESCAPES)])],
        "explain": random.choice([["--list"], ["no-such-claim"], ["--device", "toaster"]]),
        "tune": ["--lengths", random.choice(["nonsense", "1", "8,-2", *(f"8{escape}" for escape in ESCAPES)])],
        "demo": ["--keys", random.choice(["1", "x", "1e3", *ESCAPES])],
        "data gettext": [
            "--package",
            random.choice(["no-such", *WORDS]),
            "--out",
            random.choice(OUTPUTS),
            "--where",
            "out",
        ],
    }.get(verb, [])


def reports(random: Random) -> Case:
    """A damaged report of an earlier check, shown, written or compared."""
    good = random.choice(examples.reports())
    data = as_json(change_tree(good, random))
    if random.random() < 0.3:
        data = change_bytes(data, random)
    ways = [
        (),
        ("--json",),
        ("--quiet",),
        ("--html", "out/p.html"),
        ("--markdown", "out/p.md"),
        ("--fail-on", "sink>0.5"),
    ]
    ways += [("--html", random.choice(PATHS)), ("--markdown", random.choice(PATHS))]
    ways += [("--compare", "good.json"), ("--compare", "good.json", "--json"), ("--compare", "r.json")]
    files = {"r.json": data, "good.json": as_json(good), "out/.keep": b""}
    return Case(("check", "r.json", *random.choice(ways), *random.choice(LANGUAGES)), files)


def tuned_models(random: Random) -> Case:
    """A damaged record of a tuned model, shown or written."""
    data = as_json(change_tree(to_plain(random.choice([tuned.fine, tuned.several])()), random))
    if random.random() < 0.3:
        data = change_bytes(data, random)
    ways = [(), ("--json",), ("--html", "out/p.html"), ("--html", random.choice(PATHS))]
    return Case(("tune", "t.json", *random.choice(ways), *random.choice(LANGUAGES)), {"t.json": data, "out/.keep": b""})


def configurations(random: Random) -> Case:
    """A damaged configuration for a folder that holds a run already, so that nothing is trained."""
    data = as_toml(change_tree(random.choice(examples.configurations()), random))
    if random.random() < 0.3:
        data = change_bytes(data, random)
    rules = ("--rules", str(random.choice(["none,1/d", *WORDS]))) if random.random() < 0.2 else ()
    files = {"c.toml": data, "out/metrics.jsonl": b"", "out/1/metrics.jsonl": b""}
    if rules:
        data = b""  # several rules have folders of their own, and would be trained
    return Case(("train", "c.toml", "--out", "out", *rules, *random.choice(LANGUAGES)), files | {"c.toml": data})


def specifications(random: Random) -> Case:
    """A damaged sweep, read and then refused for an option that it cannot have."""
    data = as_toml(change_tree(random.choice(examples.specifications()), random))
    if random.random() < 0.3:
        data = change_bytes(data, random)
    quick = random.choice([(), ("--quick",)])
    words = ("sweep", "s.toml", "--store", "out", "--gpus", "1", *quick, *random.choice(LANGUAGES))
    return Case(words, {"s.toml": data})


def recorded(random: Random) -> Case:
    """A damaged record for the claims that show recorded sweeps; a file stands where the page should go."""
    data = as_json(change_tree(examples.recorded(), random))
    if random.random() < 0.3:
        data = change_bytes(data, random)
    words = ("explain", "scaling-restores-it", "--record", "r.json", "--out", "file/page", *random.choice(LANGUAGES))
    return Case(words, {"r.json": data, "file": b""})


def catalogues(random: Random) -> Case:
    """Damaged message catalogues, metadata and lists of files of an installed package."""
    files = examples.site()
    name = random.choice(sorted(files))
    pieces = (
        b"msgid",
        b'msgstr "',
        b'"\n',
        b"msgctxt",
        b"\\x",
        b"\0",
        b"\xff\xff\xff\xff",
        b"../../../etc/passwd",
        b"charset=x",
    )
    words = ("data", "gettext", "--package", "p", "--where", "site", "--out", "out/c.tsv", *random.choice(LANGUAGES))
    json_or_not = random.choice([(), ("--json",)])
    return Case((*words, *json_or_not), {name: change_bytes(files[name], random, pieces)}, "site")


def runs(random: Random) -> Case:
    """A damaged run, opened to translate or to be resumed. Half of the time its hashes fit the damage."""
    files = examples.trained()
    names = sorted(name for name in files if name.startswith("run/") and not name.endswith(".lock"))
    changes: dict[str, bytes | None] = {}
    for name in random.sample(names, random.choice([1, 1, 2])):
        changes[name] = _damaged(name, files[name], random)
    if random.random() < 0.5:
        changes |= _hashed(files | changes, random)
    words = random.choice(
        [
            ("translate", "run", "a"),
            ("translate", "run", "a", "--json"),
            ("train", "c.toml", "--out", "run", "--resume"),
        ]
    )
    return Case((*words, *random.choice(LANGUAGES)), changes, "trained", outputs=("run",))


def _hashed(files: dict[str, bytes | None], random: Random) -> dict[str, bytes]:
    """The manifests of the checkpoints, with the hashes that fit the files."""
    found = {}
    for name, manifest in files.items():
        data = files.get(name.replace(".json", ".safetensors"))
        if "/checkpoints/" in name and name.endswith(".json") and data is not None:
            try:
                plain = parse_json(name, manifest or b"")
                plain |= {"sha256": sha256(data).hexdigest()}
                plain["notes"] |= {"vocabulary": sha256(files["run/tokenizer.json"] or b"").hexdigest()}
            except (InputError, TypeError, KeyError, AttributeError):
                continue
            found[name] = _sealed(plain, random)
    return found


def _sealed(plain: Any, random: Random) -> bytes:
    """JSON with a seal that fits, mostly."""
    if isinstance(plain, dict) and random.random() < 0.8:
        plain.pop(SEAL, None)
        with suppress(ValueError, RecursionError):
            return as_json(sealed(plain))
    return as_json(plain)


def _damaged(name: str, data: bytes, random: Random) -> bytes | None:
    if random.random() < 0.1:
        return None
    if name.endswith(".safetensors"):
        return safetensors(data, random)
    if random.random() < 0.6:
        try:
            if name.endswith(".json"):
                return _sealed(change_tree(json.loads(data), random), random)
            lines = [json.loads(line) for line in data.splitlines()]
            return b"".join(as_json(line) + b"\n" for line in change_tree(lines, random))
        except (ValueError, TypeError):
            pass
    return change_bytes(data, random)


def safetensors(data: bytes, random: Random) -> bytes:
    """A safetensors file with a damaged header, or damaged bytes."""
    (size,) = struct.unpack("<Q", data[:8])
    header, body = data[8 : 8 + size], data[8 + size :]
    match random.randrange(4):
        case 0:
            return change_bytes(data, random)
        case 1:
            size = random.choice([0, 1, size - 1, size + 1, len(data), 2**32, 2**63, 2**64 - 1])
            return struct.pack("<Q", size) + header + body
        case 2:
            header = change_bytes(header, random)
        case _:
            header = as_json(change_tree(json.loads(header), random))
    return struct.pack("<Q", len(header)) + header + body


def stores(random: Random) -> Case:
    """A finished sweep with a damaged outcome. Where the sweep would train again, it is stopped, unless the case is whole."""
    files = examples.swept()
    names = sorted(name for name in files if name.startswith("store/trials/"))
    name = random.choice([*names, *names, "store/sweep.json"])
    json_or_not = random.choice([(), ("--json",)])
    words = ("sweep", "s.toml", "--store", "store", "--workers", "1", *json_or_not, *random.choice(LANGUAGES))
    changes = {name: _damaged(name, files[name], random)}
    return Case(words, changes, "swept", outputs=("store",), whole=random.random() < 0.005)


def caches(random: Random) -> Case:
    """A claim's entry in the cache, damaged, and mostly with a seal that fits. The claim itself is not run."""
    data = _sealed(change_tree(examples.kept(), random), random)
    if random.random() < 0.2:
        data = change_bytes(data, random)
    ways = random.choice([(), (), ("--json",), ("--out", "out"), ("--out", random.choice(OUTPUTS))])
    name = f"{examples.CACHE}/{KEPT}"
    words = ("explain", examples.CLAIM, *ways, *random.choice(LANGUAGES))
    return Case(words, {name: data, "out/.keep": b""}, outputs=("out", examples.CACHE))


def models(random: Random) -> Case:
    """A model folder with a damaged configuration, tokenizer or weights."""
    files = examples.model()
    name = random.choice(["model/config.json"] * 4 + ["model/model.safetensors"] * 3 + sorted(files))
    data = _damaged(name, files[name], random)
    if name == "model/config.json" and random.random() < 0.2:
        data = as_json(json.loads(files[name]) | {"model_type": value(random)})
    words = ("check", "model", "--tokens", "8", "--what-if", "", "--one-implementation", *random.choice(LANGUAGES))
    more = random.choice([(), (), ("--json",), ("--from-config",), ("--text", "model/config.json")])
    return Case((*words, *more), {name: data}, "model")


def watched_runs(random: Random) -> Case:
    """A damaged store of a run that was watched, or its damaged JSON, shown or exported."""
    data, tree = examples.watched()
    if random.random() < 0.5:
        name, damaged = "r.db", change_bytes(data, random)
    else:
        name, damaged = "r.json", as_json(change_tree(tree, random))
    ways = [
        ("watch",),
        ("watch", "--html", "out/p.html"),
        ("export", "--csv", "out/p.csv"),
    ]
    return Case((*random.choice(ways), name, *random.choice(LANGUAGES)), {name: damaged, "out/.keep": b""})


TARGETS: dict[str, tuple[float, Callable[[Random], Case]]] = {
    "rules": (30, rules),
    "command lines": (40, command_lines),
    "reports": (30, reports),
    "configurations": (30, configurations),
    "specifications": (15, specifications),
    "recorded sweeps": (10, recorded),
    "catalogues": (20, catalogues),
    "cache entries": (10, caches),
    "runs": (8, runs),
    "stores": (8, stores),
    "models": (8, models),
    "watched runs": (10, watched_runs),
    "tuned models": (10, tuned_models),
}
"""Each generator, and its share of the cases: most go to readers that answer within milliseconds."""
