"""JSON schemas for tests: a collection of hard cases, and random ones."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

COLOURS: Schema = {"enum": ["red", "grün", "未定"]}
NODE: Schema = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "minimum": -9, "maximum": 9},
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
    },
    "required": ["value"],
    "additionalProperties": False,
}
PERSON: Schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 30},
        "née": {"type": ["string", "null"], "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 3},
        "address": {"$ref": "#/$defs/address"},
    },
    "required": ["name", "age", "address"],
    "additionalProperties": False,
    "$defs": {
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 20},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["zip"],
            "additionalProperties": False,
        }
    },
}
COLLECTION: list[Schema] = [
    {},
    {"type": "object"},
    {"type": "array"},
    {"type": "string"},
    {"type": "number"},
    {"type": "integer"},
    {"type": "boolean"},
    {"type": "null"},
    {"$ref": "#/$defs/C", "$defs": {"C": COLOURS}},
    {"$defs": {"C": COLOURS}, "$ref": "#/$defs/C"},
    {"type": "object",
     "properties": {"a": {"properties": {"b": {"$ref": "#/$defs/C"}}, "required": ["b"], "type": "object"}},
     "required": ["a"], "$defs": {"C": {"$ref": "#/$defs/D"}, "D": COLOURS}},
    {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    {"type": "object", "properties": {"self": {"$ref": "#"}}, "additionalProperties": False},
    {"enum": [1, "1", None, True]},
    {"enum": [{"a": [1, {"b": None}]}, [], {}, "", -0.5, 1e3]},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": {"const": 1}},
     "additionalProperties": False},
    {"type": "object", "additionalProperties": False},
    {"type": "object", "maxProperties": 0},
    {"const": 'say "hi" \\ back'},
    {"const": "line\nbreak\ttab \x01 \u2028 \U0001f389"},
    {"const": {"ключ": ["значение", 1.5, False]}},
    {"type": "object",
     "properties": {'qu"ote': True, "back\\slash": {"const": 1}, "": {"const": 2}, "日本": {"const": 3}},
     "required": ['qu"ote', "back\\slash", "", "日本"], "additionalProperties": False},
    {"type": "object", "required": ["z", "y", "a"], "properties": {"a": {"const": 1}, "z": {"const": 2}}},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 3},
    {"type": "object", "patternProperties": {"^x-": {"type": "string"}, "^[0-9]+$": {"type": "null"}},
     "additionalProperties": False},
    {"type": "object", "properties": {"$ref": {"const": "#"}, "enum": {"type": "null"}}, "required": ["$ref"]},
    {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 3}, "minItems": 2, "maxItems": 4},
    {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1}, "maxItems": 2},
    {"type": "array", "prefixItems": [{"const": "x"}, {"type": "null"}], "items": False},
    {"type": "array", "prefixItems": [{"const": "x"}, {"type": "null"}], "items": {"type": "integer"}, "minItems": 2},
    {"type": "array", "items": False},
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "string", "maxLength": 0},
    {"type": "string", "pattern": "^[A-Z][a-z]+( [A-Z]\\.)?$"},
    {"type": "string", "pattern": "ab+c"},
    {"type": "string", "pattern": "^(кот|пёс|\U0001f408)$"},
    {"type": "string", "pattern": "^a{2,5}$", "maxLength": 3},
    {"type": "string", "pattern": '^["\\\\/]{1,3}$'},
    {"type": "integer", "minimum": -5, "exclusiveMaximum": 5},
    {"type": "integer", "exclusiveMinimum": 99, "maximum": 101},
    {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
    {"type": "integer", "minimum": 12345678901234567},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 2.25},
    {"type": "number", "minimum": 0.001, "maximum": 0.01},
    {"type": "number", "minimum": -1000000},
    {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}, {"type": "array", "items": {"type": "null"}}]},
    {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "integer"},
               {"type": "object", "additionalProperties": False}]},
    {"oneOf": [{"type": "object", "properties": {"kind": {"const": kind}, kind: {"type": "integer"}},
                "required": ["kind", kind], "additionalProperties": False} for kind in ("cat", "dog")]},
    {"anyOf": [{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
               {"type": "object", "properties": {"b": {"const": 2}}, "required": ["b"]}]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
               {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 12}]},
    {"$ref": "#/$defs/short", "minLength": 2, "$defs": {"short": {"type": "string", "maxLength": 4}}},
    {"type": ["integer", "null", "string"], "maxLength": 4, "minimum": 5},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "time"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "ipv6"},
    {"type": "string", "format": "email"},
    {"type": "string", "title": "t", "description": "d", "default": "", "examples": [1], "$comment": "c",
     "deprecated": True},
    {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {"const": "é"}}, "type": "array",
     "items": [{"$ref": "#/definitions/a"}], "additionalItems": False},
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/s", "$anchor": "top",
     "type": "array", "items": {"$ref": "#/$defs/p"}, "maxItems": 2, "$defs": {"p": {"type": "boolean"}}},
    PERSON,
]  # fmt: skip

_NAMES = ["id", "name", "größe", "名前", "a b", 'q"', "back\\", "type", "$ref", "x-1", "e\u0301", "0", "items"]
_VALUES = [
    "",
    "grün",
    "未定",
    'q"\\',
    "a\nb",
    "\U0001f600",
    0,
    -3,
    2.5,
    1e20,
    None,
    True,
    False,
    [1, "a"],
    {"é": [None]},
]
_PATTERNS = ["^[a-f0-9]{4}$", "^(yes|no|vielleicht)$", "x[yz]+", "^[^a-z]{1,6}$", "^\\d{1,3}(\\.\\d{2})?$", "é$"]
_FORMATS = ["date", "time", "uuid", "ipv4", "email"]


def random_schema(seed: int) -> Schema:
    """A schema that llguidance supports, by its seed: three levels deep, half of them with recursive definitions."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        return _value(rng, 3, ())
    names = ("tree", "leaf")
    tree = {
        "type": "object",
        "properties": {"leaf": {"$ref": "#/$defs/leaf"}, "next": {"$ref": "#/$defs/tree"}},
        "required": ["leaf"] if rng.random() < 0.5 else [],
        "additionalProperties": False,
    }
    schema = _container(rng, 3, names)
    return {**schema, "$defs": {"leaf": _scalar(rng), "tree": tree}}


def _value(rng: random.Random, depth: int, refs: tuple[str, ...]) -> Schema:
    if refs and rng.random() < 0.25:
        return {"$ref": f"#/$defs/{rng.choice(refs)}"}
    if depth <= 0 or rng.random() < 0.35:
        return _scalar(rng)
    if rng.random() < 0.2:
        parts = [_scalar_of(rng, kind) for kind in rng.sample(["string", "integer", "boolean", "null"], 2)]
        return {rng.choice(["anyOf", "oneOf"]): [*parts, _container(rng, depth - 1, refs)]}
    return _container(rng, depth, refs)


def _container(rng: random.Random, depth: int, refs: tuple[str, ...]) -> Schema:
    if rng.random() < 0.4:
        least = rng.choice([0, 0, 1, 2])
        schema: Schema = {"type": "array", "items": _value(rng, depth - 1, refs), "maxItems": least + rng.randrange(3)}
        return {**schema, "minItems": least} if least else schema
    names = rng.sample(_NAMES, rng.randrange(1, 5))
    schema = {"type": "object", "properties": {name: _value(rng, depth - 1, refs) for name in names}}
    schema["required"] = [name for name in names if rng.random() < 0.6]
    extra = rng.choice([False, False, True, {"type": "integer"}])
    return schema if extra is True else {**schema, "additionalProperties": extra}


def _scalar(rng: random.Random) -> Schema:
    kind = rng.choice(["string", "string", "integer", "number", "boolean", "null", "enum", "const"])
    match kind:
        case "enum":
            return {"enum": rng.sample(_VALUES, rng.randrange(1, 5))}
        case "const":
            return {"const": rng.choice(_VALUES)}
    return _scalar_of(rng, kind)


def _scalar_of(rng: random.Random, kind: str) -> Schema:
    schema: Schema = {"type": kind}
    if kind == "string":
        least = rng.randrange(4)
        bounds = {"minLength": least, "maxLength": least + rng.randrange(9)}
        schema |= rng.choice([{}, bounds, {"pattern": rng.choice(_PATTERNS)}, {"format": rng.choice(_FORMATS)}])
    elif kind == "integer":
        least = rng.randrange(-2000, 2000)
        schema |= rng.choice(
            [{}, {"minimum": least, "maximum": least + rng.randrange(500)}, {"exclusiveMinimum": least}]
        )
    elif kind == "number":
        least = round(rng.uniform(-50, 50), rng.randrange(3))
        schema |= rng.choice([{}, {"minimum": least, "maximum": least + 1.5}, {"exclusiveMaximum": least}])
    return schema
