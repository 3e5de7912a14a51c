"""Writes the JSON Schema of the broker's configuration file: `python tools/generate_schema.py [FILE]`.

Types, bounds and defaults are those of `BrokerConfig`, by msgspec; what the settings mean is told by the table of
docs/configuration.md; the section [serve] is made of the options of `engine serve`. Editors complete and check by it.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from engine.broker.settings import checks
from engine.broker.settings.config import _DURABILITIES, _FIELDS, _SPECIFICATION_NAMES, _TEXTS, KINDS, BrokerConfig
from engine.cli.serve import command as serve
from engine.cli.serve_settings import SETTINGS
from engine.model.units import BYTES, SECONDS, SHARES, byte_count, seconds, share

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"
OUT = ROOT / "src" / "engine" / "cli" / "engine.schema.json"
FORMS = {seconds: SECONDS, byte_count: BYTES, share: SHARES}
EXAMPLES = {seconds: "5m", byte_count: "50MB", share: "25%"}


def meanings() -> dict[str, str]:
    """{setting: what the page says it means, and its default in words}, without links."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    plain = {name: re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text) for name, _, text in rows}
    words = {name: "" if default.startswith("`") else f". Default: {default}" for name, default, _ in rows}
    return {name: text + words[name] for name, text in plain.items()}


def any_case(text: str) -> str:
    """A pattern of this text in capitals or not."""
    return "".join(f"[{c.lower()}{c.upper()}]" if c.isalpha() else re.escape(c) for c in text)


def text_form(key: str) -> dict[str, Any]:
    """The text with a unit that a setting may be."""
    units = FORMS[_TEXTS[key]]
    named = "|".join(any_case(unit) for unit in sorted(units, key=len, reverse=True) if unit)
    return {
        "type": "string",
        "pattern": rf"^\s*[0-9]+(\.[0-9]+)?\s*({named})?\s*$",
        "examples": [EXAMPLES[_TEXTS[key]]],
    }


def setting(key: str, made: dict[str, Any]) -> dict[str, Any]:
    """The schema of one, of what msgspec has made."""
    default = made.pop("default", None)
    forms = [form for form in made.pop("anyOf", [dict(made)]) if form.get("type") != "null"]
    if key in _TEXTS:
        forms.append(text_form(key))
    if _FIELDS[key].startswith("tuple"):
        forms.append({"type": "string"})  # with commas
    found: dict[str, Any] = forms[0] if len(forms) == 1 else {"anyOf": forms}
    if key == "durability":
        found = {"enum": ["", *_DURABILITIES, "object"]}
    found["description"] = meanings()[key]
    if unit := checks.bounds_of(KINDS[key]).get("unit"):
        found["description"] += {"seconds": " (seconds)", "bytes": " (bytes)", "share": ""}[unit]
    if default not in (None, ""):
        found["default"] = list(default) if isinstance(default, tuple) else default
    return found


def settings() -> dict[str, Any]:
    """Of all settings, with the files of secrets."""
    made = msgspec.json.schema(BrokerConfig)["$defs"]["BrokerConfig"]["properties"]
    found = {key: setting(key, made[key]) for key in KINDS}
    for key in sorted(_FIELDS.keys() - KINDS.keys()):
        secret = key.removesuffix("_file")
        found[key] = {"type": "string", "description": f"The path of a file whose one line is `{secret}`"}
    return found


def names_of_the_specification() -> str:
    """A pattern of the names in camel case that are understood as well."""
    camel = {re.sub(r"_([a-z0-9])", lambda m: m[1].upper(), key) for key in _FIELDS if "_" in key}
    return f"^({'|'.join(sorted(camel | set(_SPECIFICATION_NAMES)))})$"


def option(parameter: click.Option) -> dict[str, Any]:
    """The schema of an option of `engine serve`."""
    kind = parameter.type
    found: dict[str, Any] = {"type": "string"}
    if parameter.is_flag:
        found = {"type": "boolean"}
    elif isinstance(kind, click.Choice):
        found = {"enum": list(kind.choices)}
    elif isinstance(kind, click.types.IntParamType):
        found = {"type": "integer"}
    elif parameter.name == "processes":
        found = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}
    return found | {"description": " ".join((parameter.help or "").split())}


def serving() -> dict[str, Any]:
    """The section [serve]."""
    known = [p for p in serve.params if isinstance(p, click.Option) and p.name not in (*SETTINGS, "config", "help")]
    return {str(p.name): option(p) for p in known}


def schema() -> dict[str, Any]:
    """Of the whole file: settings at the top or under [broker], options of `engine serve` under [serve]."""
    broker = {"properties": settings(), "patternProperties": {names_of_the_specification(): {}}}
    section = {"type": "object", "additionalProperties": False}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Engine: the configuration of a broker",
        **section,
        **broker,
        "properties": {
            **broker["properties"],
            "broker": {"description": "The same settings, which win over those above", **section, **broker},
            "serve": {"description": "Options of `engine serve`", **section, "properties": serving()},
        },
    }


def text() -> str:
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else OUT).write_text(text())
