"""The table of local base images: FROM name -> recipe of a root tree copied from this machine."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class BaseRecipe(BaseModel):
    """Which programs of the host make up a base, each with the shared libraries it needs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    programs: tuple[str, ...]
    """Names looked up on the host's PATH; each must exist."""

    optional_programs: tuple[str, ...] = ()
    """Taken where the host has them."""

    folders: tuple[str, ...] = ()
    """Absolute host folders copied with all they hold; each must exist."""

    python: bool = False
    """Adds a Python 3 with its standard library."""

    aliases: tuple[str, ...] = Field(default=())
    """Further FROM names of the same tree."""


_REQUIRED_NAMES = (
    "sh bash cat chmod cp cut date dirname basename env head ls ln mkdir mktemp mv printf pwd rm rmdir sleep sort "
    "tail tee test touch tr true false uniq wc seq stat id grep sed awk find xargs diff cmp tar gzip"
)
_OPTIONAL_NAMES = (
    "dash [ arch b2sum base32 base64 basenc chgrp chown cksum comm csplit dd df dir dircolors du echo expand expr "
    "factor fmt fold groups hostid install join link logname md5sum mkfifo mknod nice nl nohup nproc numfmt od "
    "paste pathchk pinky pr printenv ptx readlink realpath sha1sum sha224sum sha256sum sha384sum sha512sum shred "
    "shuf split stdbuf stty sum sync tac timeout truncate tsort tty uname unexpand unlink users vdir who whoami yes "
    "egrep fgrep gunzip zcat mawk gawk sdiff diff3 bzip2 bunzip2 xz unxz ps pgrep pkill kill free uptime setsid "
    "setpriv hostname which column rev hexdump xxd bc jq patch tree getopt flock cal getent"
)


def default_bases() -> dict[str, BaseRecipe]:
    """`longshore/base`: shells, coreutils, text tools. `longshore/base-python`: the same with Python 3.

    Distribution names (debian, ubuntu, python) are not aliases: these trees have no package manager, and a task that
    names them may need one. A site that knows better adds its own entries in the settings.
    """
    base = BaseRecipe(
        programs=tuple(_REQUIRED_NAMES.split()),
        optional_programs=tuple(_OPTIONAL_NAMES.split()),
        aliases=("longshore/base:latest",),
    )
    with_python = base.model_copy(update={"python": True, "aliases": ("longshore/base-python:latest",)})
    return {"longshore/base": base, "longshore/base-python": with_python}


def find_base(bases: dict[str, BaseRecipe], name: str) -> str | None:
    """The table's name for a FROM, or None."""
    if name in bases:
        return name
    return next((known for known, recipe in bases.items() if name in recipe.aliases), None)
