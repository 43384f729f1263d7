"""Which layers a checkpoint's config means by a pattern, found in time that no pattern can stretch.

Patterns are regular expressions, which their readers match with Python's ``re`` from the start of a name. That goes
back and tries again, so that a pattern made to that end hangs it. Here they are matched by RE2, whose time is linear in
the name, and only where both mean the same: what they read differently is refused, and so is what RE2 does not have.
Lookaheads (``(?!...)``), which it does not have either, are taken where a pattern begins with them, or with text of a
fixed length before them: the pattern then is several, all to be matched from the start.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import re2

from goldstick.errors import FormatError

_LENGTH_LIMIT, _PATTERN_LIMIT = 1000, 1000
#: Bytes that RE2 may use for one pattern; a larger program is refused by it.
_MEMORY = 2**18
#: Seconds that one list of patterns may cost, which is a thousand times what any config of a real model takes.
SECONDS = 20.0
_PLAIN = re.compile(r"[\x20-\x7e]*")
#: What RE2 and Python read alike in printable ASCII; classes hold no ``[``, which other readers take for a named class.
_TOKEN = re.compile(
    r"(?P<ahead>\(\?[=!])"
    r"|(?P<open>\((?!\?)|\(\?:)"
    r"|(?P<close>\))"
    r"|(?P<one>[^\\^$|?*+(){}\[\]]|\\[dDwWsS]|\\[^A-Za-z0-9]|\[\^?\]?(?:[^\]\\\[]|\\[dDwWsS]|\\[^A-Za-z0-9])*\])"
    r"|(?P<repeat>(?:[*+?]|\{\d+(?:,\d*)?\})\??)"
    r"|(?P<edge>\^|\$|\\[AZbB])"
    r"|(?P<bar>\|)"
)
_FOLDED = "(?i)"


class NamePatterns:
    """A list of patterns in compressed-tensors' syntax: a regular expression after ``re:``, or a whole name.

    Args:
        patterns: As the config lists them.

    Raises:
        FormatError: One is no regular expression, or none that is read here, or there are too many.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._whole: dict[str, int] = {}
        self._expressions: list[tuple[int, _Expression]] = []
        self._seconds = 0.0
        for place, pattern in enumerate(patterns):
            name = _only_name(pattern[3:]) if pattern.startswith("re:") else pattern
            if name is not None:
                self._whole.setdefault(name, place)
            elif len(self._expressions) == _PATTERN_LIMIT:
                raise FormatError(
                    f"The config lists more than {_PATTERN_LIMIT:,} patterns, which is refused: matching them takes "
                    "too long. Name the layers in full."
                )
            else:
                self._expressions.append((place, _read(pattern[3:])))

    def first(self, name: str) -> int | None:
        """The place in the list of the first pattern that matches a name; ``None`` where none does.

        Raises:
            FormatError: The name holds other characters than printable ASCII, or the list costs too much time.
        """
        whole = self._whole.get(name)
        if not self._expressions:
            return whole
        if not _PLAIN.fullmatch(name):
            raise FormatError(f"The layer {name[:100]!r} cannot be matched: names are of printable ASCII characters.")
        if self._seconds > SECONDS:
            raise FormatError(
                f"The config's patterns are refused: matching them took longer than {SECONDS:.0f} seconds. Name the "
                "layers in full, or use fewer patterns."
            )
        started, encoded = time.thread_time(), name.encode()
        ahead = (place for place, expression in self._expressions if expression.matches(encoded))
        found = min((place for place in (whole, next(ahead, None)) if place is not None), default=None)
        self._seconds += time.thread_time() - started
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Expression:
    """A regular expression: what must match from the start of a name, and what must not."""

    wanted: tuple[Any, ...]
    unwanted: tuple[Any, ...]

    def matches(self, name: bytes) -> bool:
        return all(one.match(name) for one in self.wanted) and not any(one.match(name) for one in self.unwanted)


def _only_name(pattern: str) -> str | None:
    """The one name that an expression such as ``^lm_head$`` stands for; ``None`` where it stands for more."""
    if not (pattern.startswith("^") and pattern.endswith("$")):
        return None
    name = re.sub(r"\\([^A-Za-z0-9])", r"\1", pattern[1:-1])
    return name if re.escape(name) == pattern[1:-1] and _PLAIN.fullmatch(name) else None


def _read(pattern: str) -> _Expression:
    """An expression, taken apart into what RE2 matches.

    Raises:
        FormatError: It is none, or holds what is not matched here.
    """
    if len(pattern) > _LENGTH_LIMIT or not _PLAIN.fullmatch(pattern):
        raise _refused(pattern, f"it is longer than {_LENGTH_LIMIT:,} characters, or holds others than printable ASCII")
    folded = pattern.startswith(_FOLDED)
    tokens = _tokens(pattern, len(_FOLDED) if folded else 0)
    start, place = "", 0
    aheads: list[tuple[bool, str]] = []
    while place < len(tokens):
        kind, text = tokens[place]
        repeated = tokens[place + 1 : place + 2] and tokens[place + 1][0] == "repeat"
        if kind == "ahead":
            end = _closing(tokens, place)
            inside = "".join(text for _, text in tokens[place + 1 : end])
            aheads.append((text == "(?=", f"{start}(?:{inside})"))
            place = end + 1
        elif (kind == "one" or text in ("^", r"\A")) and not repeated:
            start += text
            place += 1
        else:
            break
    rest = tokens[place:]
    if any(kind == "ahead" for kind, _ in rest) or (aheads and _divided(rest)):
        raise _refused(pattern, "a lookahead stands elsewhere than at its start; '^(?!.*part)' says 'without part'")
    whole = start + "".join(text for _, text in rest)
    wanted, unwanted = [whole, *(text for seen, text in aheads if seen)], [text for seen, text in aheads if not seen]
    return _Expression(
        wanted=tuple(_compiled(text, folded, pattern) for text in wanted),
        unwanted=tuple(_compiled(text, folded, pattern) for text in unwanted),
    )


def _tokens(pattern: str, place: int) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    while place < len(pattern):
        token = _TOKEN.match(pattern, place)
        if token is None or token.lastgroup is None:
            raise _refused(pattern, f"it holds {pattern[place : place + 10]!r}, which is not matched here")
        if token.lastgroup == "repeat" and (not found or found[-1][0] not in ("one", "close")):
            raise _refused(pattern, f"there is nothing that {token[0]!r} could repeat")
        found.append((token.lastgroup, r"\z" if token[0] == r"\Z" else token[0]))
        place = token.end()
    return found


def _closing(tokens: Sequence[tuple[str, str]], place: int) -> int:
    """Where the group that opens at ``place`` closes."""
    depth = 0
    for index in range(place, len(tokens)):
        kind = tokens[index][0]
        depth += (kind in ("open", "ahead")) - (kind == "close")
        if depth == 0:
            return index
    raise _refused("".join(text for _, text in tokens), "missing ) after a lookahead")


def _divided(tokens: Sequence[tuple[str, str]]) -> bool:
    """Whether a ``|`` stands outside of all groups, or the first token repeats what was before."""
    depth = 0
    for kind, _ in tokens:
        depth += (kind == "open") - (kind == "close")
        if kind == "bar" and depth == 0:
            return True
    return bool(tokens) and tokens[0][0] == "repeat"


def _compiled(text: str, folded: bool, pattern: str) -> Any:
    options = re2.Options()
    options.max_mem, options.never_capture, options.log_errors = _MEMORY, True, False
    options.case_sensitive = not folded
    try:
        return re2.compile(text, options)
    except re2.error as error:
        cause = error.args[0] if error.args else error
        raise _refused(pattern, cause.decode() if isinstance(cause, bytes) else str(cause)) from error


def _refused(pattern: str, why: str) -> FormatError:
    return FormatError(
        f"The config's pattern {pattern[:100]!r} is refused: {why}. Patterns are plain regular expressions on names "
        "(groups, classes, repeats, alternatives); name the layers in full where these do not do."
    )
