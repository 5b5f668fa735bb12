"""House rules that no linter knows: sizes of files and functions, no machine paths, no package hosts, no big files."""

import ast
import re
import subprocess
import sys
from pathlib import Path

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_BYTES = 600, 60, 3_000_000
FORBIDDEN = re.compile(
    r"https?://[^\s\"']+/(?:simple|packages)/" + r"|/" + r"work/(?:main|shared|steering)" + r"|/root/\.(?:cache|pyenv)"
)


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := Path(name)).is_file()]


def long_functions(path: Path, tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                found.append(f"{path}:{node.lineno}: {node.name} has {lines} lines (at most {MAX_FUNCTION_LINES})")
    return found


def problems(path: Path) -> list[str]:
    found = []
    if path.stat().st_size > MAX_BYTES:
        found.append(f"{path}: larger than {MAX_BYTES} bytes")
    text = path.read_text(errors="replace")
    if (match := FORBIDDEN.search(text)) and path.name != "check_tree.py":
        line = text[: match.start()].count("\n") + 1
        found.append(f"{path}:{line}: a machine path or package host: {match.group()}")
    if path.suffix == ".py" and path.parts[0] != "gen":
        if (lines := text.count("\n")) > MAX_FILE_LINES:
            found.append(f"{path}: {lines} lines (at most {MAX_FILE_LINES})")
        found += long_functions(path, ast.parse(text))
    return found


def main() -> int:
    found = [problem for path in tracked() for problem in problems(path)]
    print("\n".join(found) or "tree: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
