"""Writes the JSON Schemas of the configuration files of brokers and proxies: `python tools/generate_schema.py`.

Types, bounds and defaults are those of `BrokerConfig` and `ProxyConfig`, by msgspec; what the settings mean is told by
the tables of docs/configuration.md and docs/proxy.md; the section [serve] is made of the options of `engine serve`.
Editors complete and check by them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from engine.broker.settings import checks
from engine.broker.settings.config import _DURABILITIES, _FIELDS, _SPECIFICATION_NAMES, _TEXTS, KINDS, BrokerConfig
from engine.cli.serve import command as serve
from engine.cli.serve_settings import SETTINGS
from engine.model.units import BYTES, SECONDS, SHARES, byte_count, seconds, share
from engine.proxy import config as proxy

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"
PROXY_PAGE = ROOT / "docs" / "proxy.md"
OUT = ROOT / "src" / "engine" / "cli" / "engine.schema.json"
PROXY_OUT = ROOT / "src" / "engine" / "cli" / "engine-proxy.schema.json"
FORMS = {seconds: SECONDS, byte_count: BYTES, share: SHARES}
EXAMPLES = {seconds: "5m", byte_count: "50MB", share: "25%"}


def without_links(text: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text.replace(" ([below](#clients-with-roles))", ""))


def meanings() -> dict[str, str]:
    """{setting: what the page says it means, and its default in words}, without links."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    plain = {name: without_links(text) for name, _, text in rows}
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


def unit_of(kind: Any) -> str:
    return {"seconds": " (seconds)", "bytes": " (bytes)"}.get(checks.bounds_of(kind).get("unit", ""), "")


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
    found["description"] += unit_of(KINDS[key])
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
    return camel_pattern(_FIELDS, _SPECIFICATION_NAMES)


def camel_pattern(keys: Iterable[str], names: Iterable[str]) -> str:
    """A pattern of the keys in camel case, and of further names."""
    camel = {re.sub(r"_([a-z0-9])", lambda m: m[1].upper(), key) for key in keys if "_" in key}
    return f"^({'|'.join(sorted(camel | set(names)))})$"


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


def proxy_meanings() -> dict[str, str]:
    """{setting of a proxy: what the page says it means}: the first cell of a row may name several."""
    rows = re.findall(r"^\|([^|]*)\|[^|]*\|[^|]*\| (.*) \|$", PROXY_PAGE.read_text(), re.MULTILINE)
    return {name: without_links(text) for names, text in rows for name in re.findall(r"`(\w+)`", names)}


def proxy_setting(key: str, made: dict[str, Any], meaning: str) -> dict[str, Any]:
    """The schema of one, of what msgspec has made."""
    default = made.pop("default", None)
    found: dict[str, Any]
    (found,) = [form for form in made.pop("anyOf", [made]) if form.get("type") != "null"]
    if key == "admin_hosts":
        found = {"anyOf": [found, {"type": "string"}]}  # with commas
    if key == "brokers":
        found["minItems"] = 1
    found["description"] = meaning + unit_of(proxy.KINDS[key])
    if default not in (None, "", [], ()):
        found["default"] = default
    return found


def proxy_schema() -> dict[str, Any]:
    """Of the whole file: settings at the top or under [proxy]."""
    made = msgspec.json.schema(proxy.ProxyConfig)["$defs"]["ProxyConfig"]["properties"]
    meaning = proxy_meanings()
    known = {key: proxy_setting(key, made[key], meaning[key]) for key in proxy.KINDS}
    for secret in proxy.SECRETS:
        known[f"{secret}_file"] = {"type": "string", "description": f"The path of a file whose one line is `{secret}`"}
    settings = {"properties": known, "patternProperties": {camel_pattern(known, proxy.SPECIFICATION_NAMES): {}}}
    section = {"type": "object", "additionalProperties": False}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Engine: the configuration of a proxy",
        **section,
        **settings,
        "properties": {
            **known,
            "proxy": {"description": "The same settings, which win over those above", **section, **settings},
        },
    }


def text(made: dict[str, Any]) -> str:
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    OUT.write_text(text(schema()))
    PROXY_OUT.write_text(text(proxy_schema()))
