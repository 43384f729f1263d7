"""Mutations of a small checkpoint: bits, bytes, lengths and the structure of its JSON, the same for the same seed."""

from __future__ import annotations

import copy
import json
import random
import struct
from typing import Any

Files = dict[str, bytes]

WEIGHTS, CONFIG = "model.safetensors", "config.json"
#: Numbers and values that a reader may trip over.
_NUMBERS = (0, 1, -1, 2, 3, 7, 31, 33, 255, 2**15, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63, -(2**31), 10**11)
_VALUES: tuple[Any, ...] = (None, True, False, "", "x", "re:.*", "../x", [], {}, [[]], [0], {"a": 1}, 0.5, float("inf"))


def mutate(files: Files, seed: int) -> Files:
    """A copy with one to three mutations, mostly of the JSON of header and config, and of the bytes of a GGUF file."""
    dice = random.Random(seed)
    files = dict(files)
    names = sorted(files)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        name = dice.choice(names)
        if name.endswith(".gguf"):
            files[name] = bytes_changed(files[name], dice, head=2000)
        elif dice.random() < 0.35:
            files[name] = bytes_changed(files[name], dice)
        elif name.endswith(".json"):
            files[name] = json_changed(files[name], dice)
        else:
            files[name] = header_changed(files[name], dice)
    return files


def bytes_changed(content: bytes, dice: random.Random, head: int = 600) -> bytes:
    data = bytearray(content)
    if not data:
        return b"{}"
    # Most of a file of weights is payload, of which every bit is legal: half of the changes are near the start.
    place = dice.randrange(min(len(data), head) if dice.random() < 0.5 else len(data))
    match dice.choice(("bit", "byte", "cut", "drop", "repeat", "insert", "length", "swap")):
        case "bit":
            data[place] ^= 1 << dice.randrange(8)
        case "byte":
            data[place] = dice.choice((0, 255, 34, 44, 91, 93, 123, 125, dice.randrange(256)))
        case "cut":
            del data[place:]
        case "drop":
            del data[place : place + dice.randrange(1, 64)]
        case "repeat":
            data[place:place] = data[place : place + dice.randrange(1, 64)]
        case "insert":
            data[place:place] = dice.randbytes(dice.randrange(1, 16))
        case "length":
            length = struct.unpack("<Q", bytes(data[:8]).ljust(8, b"\0"))[0]
            near = (length + dice.randrange(-9, 9)) % 2**64
            data[:8] = struct.pack("<Q", dice.choice((near, dice.choice(_NUMBERS) % 2**64)))
        case "swap":
            other = dice.randrange(len(data))
            size = dice.randrange(1, 32)
            data[place : place + size], data[other : other + size] = (
                data[other : other + size],
                data[place : place + size],
            )
    return bytes(data)


def header_changed(content: bytes, dice: random.Random) -> bytes:
    length = struct.unpack("<Q", content[:8].ljust(8, b"\0"))[0]
    text, payload = content[8 : 8 + min(length, len(content))], content[8 + min(length, len(content)) :]
    changed = json_changed(text, dice)
    return struct.pack("<Q", len(changed)) + changed + payload


def json_changed(text: bytes, dice: random.Random) -> bytes:
    """One value changed, removed, renamed or put elsewhere; bytes changed where the text is no JSON any more."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return bytes_changed(text, dice)
    found = places(table)
    if not found:
        return bytes_changed(text, dice)
    owner, key = dice.choice(found)
    match dice.choice(("number", "number", "value", "remove", "rename", "copy", "nest")):
        case "number":
            owner[key] = _another_number(owner[key], dice)
        case "value":
            owner[key] = copy.deepcopy(dice.choice(_VALUES))
        case "remove":
            del owner[key]
        case "rename" if isinstance(owner, dict):
            owner[dice.choice((f"{key}x", key[:-1], key.replace("_", "."), dice.choice("aé\u202e")))] = owner.pop(key)
        case "copy":
            other, name = dice.choice(found)
            owner[key] = copy.deepcopy(other[name])
        case _:
            for _ in range(dice.choice((1, 5, 50))):
                owner[key] = [owner[key]] if dice.random() < 0.5 else {"a": owner[key]}
    return json.dumps(table).encode()


def _another_number(value: Any, dice: random.Random) -> Any:
    if type(value) is int and dice.random() < 0.5:
        return value + dice.choice((-8, -1, 1, 8, value, -value, 3 * value))
    return dice.choice(_NUMBERS)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every value inside of a JSON value, as the list or table that holds it and its key."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        owner = waiting.pop()
        keys = list(owner) if isinstance(owner, dict) else range(len(owner)) if isinstance(owner, list) else ()
        for key in keys:
            found.append((owner, key))
            waiting.append(owner[key])
    return found
