"""How a task's script is started, so that a lost execute bit, a noexec mount or CRLF line ends do not matter."""

DEFAULT_INTERPRETER = "/bin/sh"


def script_argv(path: str, content: bytes) -> list[str]:
    """argv that runs the script at path by its own shebang, as the kernel splits it: interpreter, one argument, path.

    Without a shebang it is run by /bin/sh, as execvp does.
    """
    first_line = content.split(b"\n", 1)[0].rstrip(b"\r")
    if not first_line.startswith(b"#!"):
        return [DEFAULT_INTERPRETER, path]
    interpreter, _, argument = first_line[2:].decode("utf-8", "replace").strip().partition(" ")
    if not interpreter:
        return [DEFAULT_INTERPRETER, path]
    argument = argument.strip()
    return [interpreter, argument, path] if argument else [interpreter, path]


def normalise_line_ends(content: bytes) -> bytes:
    """CRLF to LF: a shell takes the carriage return for a part of the command."""
    return content.replace(b"\r\n", b"\n")
