"""YAML as people write settings in it: tables, lists, texts and numbers; names are texts, and are there once."""

from __future__ import annotations

from typing import Any

import yaml

MOST_BYTES = 1 << 16
"""More are no settings. What an alias stands for counts wherever it stands."""
MOST_NUMBER_CHARS = 40

KIND = "tag:yaml.org,2002:"
KINDS = frozenset(("str", "int", "float", "bool", "null", "map", "seq", "merge"))
NOT_YAML = (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)
"""What PyYAML raises for texts that it cannot read, such as a date that is none."""


def load(text: bytes) -> Any:
    """What a text says.

    Raises:
        ValueError: it is no YAML of this kind; the words follow the name of the text.
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"has {len(text)} bytes, and may have {MOST_BYTES}")
    try:
        return yaml.load(text.decode(), _Loader)
    except NOT_YAML as error:
        raise ValueError(f"cannot be read as YAML: {error}") from error


class _Loader(yaml.SafeLoader):
    """Refuses, while nodes come out of the text, what PyYAML would make something odd of, or too much."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._chars = 0
        self._chars_of: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        is_alias, before = self.check_event(yaml.AliasEvent), self._chars
        node: Any = super().compose_node(parent, index)
        if is_alias:
            # It is not counted yet where it lies in what it stands for.
            self._chars += self._chars_of.get(id(node), MOST_BYTES + 1)
        else:
            self._chars += 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
            self._chars_of[id(node)] = self._chars - before
            _check(node)
        if self._chars > MOST_BYTES:
            raise _refusal(node, f"its aliases come to more than {MOST_BYTES} characters")
        return node


def _check(node: yaml.Node) -> None:
    kind = node.tag.removeprefix(KIND)
    if kind not in KINDS:
        raise _refusal(node, f"there is a {kind}: write it in quotes, if it is a text")
    if isinstance(node, yaml.ScalarNode):
        if kind in ("int", "float") and len(node.value) > MOST_NUMBER_CHARS:
            raise _refusal(node, f"there is a number of {len(node.value)} digits")
        # Halves of a character, which YAML can write and nothing can store.
        node.value.encode()
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for name, _ in node.value:
            if name.tag not in (f"{KIND}str", f"{KIND}merge"):
                raise _refusal(name, f"a name is no text, but a {name.tag.removeprefix(KIND)}: write it in quotes")
            if name.value in seen:
                raise _refusal(name, f"the name {name.value} is there twice")
            seen.add(name.value)


def _refusal(node: yaml.Node, text: str) -> yaml.YAMLError:
    line = node.start_mark.line + 1 if node.start_mark else 0
    return yaml.YAMLError(f"{text} (line {line})")
