"""Which addresses sandboxes may reach. The longest matching prefix decides; policies and proxy share the table."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from longshore_common.errors import InvalidSpec

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_PUBLIC = ("0.0.0.0/0", "2000::/3")
_SPECIAL = {
    "0.0.0.0/8": "this host",
    "10.0.0.0/8": "private (RFC 1918)",
    "100.64.0.0/10": "carrier-grade NAT",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local, cloud metadata",
    "172.16.0.0/12": "private (RFC 1918)",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "documentation",
    "192.88.99.0/24": "6to4 relay",
    "192.168.0.0/16": "private (RFC 1918)",
    "198.18.0.0/15": "benchmarking",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "::/0": "not global unicast (loopback, mapped IPv4, unique local, link-local, multicast)",
    "2001::/23": "reserved, Teredo",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4, which carries IPv4 addresses",
    "3fff::/20": "documentation",
}


def network(text: str) -> IpNetwork:
    """A CIDR or a single address. Raises InvalidSpec."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise InvalidSpec(f"{text!r} is neither CIDR nor address: {error}", field="network.cidrs") from error


@dataclass(frozen=True)
class Block:
    """A CIDR without some strictly smaller ones."""

    cidr: IpNetwork
    without: tuple[IpNetwork, ...] = ()


@dataclass(frozen=True)
class AddressRules:
    """The internet, less special-purpose addresses and `denied`, plus `allowed`.

    Of two rules the one with the longer prefix decides, so a wide `allowed` never opens the cluster's own addresses
    that lie in it; of two for the same prefix `allowed` wins.
    """

    denied: Mapping[IpNetwork, str] = field(default_factory=dict)
    """The cluster's own addresses, and what each is."""
    allowed: frozenset[IpNetwork] = frozenset()
    """What the operator opens although it is private."""

    @property
    def reasons(self) -> Mapping[IpNetwork, str]:
        """All refused prefixes, and what each is."""
        return {**{network(text): why for text, why in _SPECIAL.items()}, **self.denied}

    @property
    def table(self) -> Mapping[IpNetwork, bool]:
        """Prefix -> whether it may be reached."""
        opened = dict.fromkeys((network(text) for text in _PUBLIC), True)
        return {**opened, **dict.fromkeys(self.reasons, False), **dict.fromkeys(self.allowed, True)}

    def without_allowed(self) -> AddressRules:
        """The rules before the operator opened anything."""
        return AddressRules(self.denied)

    def open_blocks(self, within: IpNetwork) -> tuple[Block, ...]:
        """Exactly the reachable addresses of `within`."""
        table = _of_family(self.table, within)
        inside = [one for one in table if one != within and _holds(within, one)]
        roots = [within] if _verdict(table, within) else []
        roots += [one for one in inside if table[one] and not _verdict(_without(table, one), one)]
        return tuple(
            Block(root, _outermost(one for one in inside if not table[one] and one != root and _holds(root, one)))
            for root in sorted(roots, key=_order)
        )

    def refused_in(self, within: IpNetwork) -> str:
        """Why an allowlist may not name `within`: a part that is refused and not opened; empty when it may."""
        base = self.without_allowed()
        table = _of_family(base.table, within)
        if not _verdict(table, within):
            parts: Iterable[IpNetwork] = (within,)
        else:
            parts = _outermost(one for one in table if not table[one] and _holds(within, one))
        for part in parts:
            if not any(_holds(one, part) for one in self.allowed):
                rule = _deciding(table, part)
                return f"{rule}: {base.reasons.get(rule, 'not public')}" if rule else "not public"
        return ""

    def as_flag(self) -> str:
        """The table as the egress proxy's flag takes it."""
        return ",".join(f"{'allow' if self.table[one] else 'deny'}:{one}" for one in sorted(self.table, key=_order))


def _order(one: IpNetwork) -> tuple[int, int, int]:
    return one.version, int(one.network_address), one.prefixlen


def _holds(outer: IpNetwork, inner: IpNetwork) -> bool:
    if isinstance(outer, ipaddress.IPv4Network):
        return isinstance(inner, ipaddress.IPv4Network) and inner.subnet_of(outer)
    return isinstance(inner, ipaddress.IPv6Network) and inner.subnet_of(outer)


def _of_family(table: Mapping[IpNetwork, bool], like: IpNetwork) -> dict[IpNetwork, bool]:
    return {one: verdict for one, verdict in table.items() if one.version == like.version}


def _without(table: Mapping[IpNetwork, bool], one: IpNetwork) -> dict[IpNetwork, bool]:
    return {other: verdict for other, verdict in table.items() if other != one}


def _deciding(table: Mapping[IpNetwork, bool], of: IpNetwork) -> IpNetwork | None:
    holding = [one for one in table if _holds(one, of)]
    return max(holding, key=lambda one: one.prefixlen) if holding else None


def _verdict(table: Mapping[IpNetwork, bool], of: IpNetwork) -> bool:
    rule = _deciding(table, of)
    return rule is not None and table[rule]


def _outermost(some: Iterable[IpNetwork]) -> tuple[IpNetwork, ...]:
    found = list(some)
    return tuple(
        sorted((one for one in found if not any(one != other and _holds(other, one) for other in found)), key=_order)
    )
