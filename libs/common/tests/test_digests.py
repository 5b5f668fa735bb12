"""Digests name content: the same content the same digest, any difference another."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_common.digests import canonical_json, digest, tree_digest
from longshore_common.errors import InvalidSpec

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_key_order_does_not_count(value: dict[str, object]):
    assert digest(value) == digest(dict(reversed(value.items())))


def test_nan_is_refused():
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"x": float("nan")})


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_tree_digest_sees_content_name_mode_and_links(tmp_path: Path):
    base = {"a/b.txt": "1", "c.txt": "2"}
    first = tree_digest(write(tmp_path / "1", base))
    assert first == tree_digest(write(tmp_path / "2", base))
    seen = {first}
    changed = write(tmp_path / "3", base)
    (changed / "c.txt").chmod(0o755)
    seen.add(tree_digest(changed))
    linked = write(tmp_path / "4", {"a/b.txt": "1"})
    (linked / "c.txt").symlink_to("a/b.txt")
    seen.add(tree_digest(linked))
    seen.add(tree_digest(write(tmp_path / "5", {"a/b.txt": "1", "d.txt": "2"})))
    seen.add(tree_digest(write(tmp_path / "6", {"a/b.txt": "2", "c.txt": "2"})))
    assert len(seen) == 5


def test_tree_digest_can_leave_out(tmp_path: Path):
    root = write(tmp_path, {"task.toml": "x", "README.md": "y"})
    only = tree_digest(root, include=lambda path: path != "README.md")
    (root / "README.md").write_text("z")
    assert tree_digest(root, include=lambda path: path != "README.md") == only


def test_a_missing_folder_is_refused(tmp_path: Path):
    with pytest.raises(InvalidSpec, match="not a folder"):
        tree_digest(tmp_path / "absent")
