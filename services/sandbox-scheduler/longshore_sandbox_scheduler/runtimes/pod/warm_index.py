"""Ready warm sandboxes by template: a claim looks one up, however many there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


class WarmIndex:
    """Names in the order in which they became ready."""

    def __init__(self) -> None:
        self._by_key: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._key_of: dict[str, str] = {}

    def add(self, template_key: str, name: str) -> None:
        """Has become ready."""
        self._key_of[name] = template_key
        self._by_key[template_key][name] = None

    def remove(self, name: str) -> None:
        """Is claimed, ends or is gone; unknown: no effect."""
        key = self._key_of.pop(name, None)
        if key is None:
            return
        names = self._by_key[key]
        names.pop(name, None)
        if not names:
            del self._by_key[key]

    def ready(self, template_key: str) -> Iterable[str]:
        """Those of a template."""
        return self._by_key.get(template_key, ())
