"""Control groups of both versions over a folder that looks like them; the real ones run in the contract suite."""

from __future__ import annotations

from pathlib import Path

from longshore_sandbox_scheduler.domain.model import Limits
from longshore_sandbox_scheduler.runtimes.bubblewrap.cgroups import NoCgroups, V1Cgroups, V2Cgroups, find_cgroups

LIMITS = Limits(cpus=0.5, memory_mb=64, storage_mb=1, max_processes=10, max_file_mb=1)


def _proc(root: Path, mounts: list[str], groups: list[str]) -> Path:
    proc = root / "proc"
    proc.mkdir()
    (proc / "mountinfo").write_text("\n".join(mounts) + "\n")
    (proc / "cgroup").write_text("\n".join(groups) + "\n")
    return proc


def test_version_2(tmp_path: Path) -> None:
    own = tmp_path / "cg" / "user"
    (own / "longshore-i").mkdir(parents=True)
    for folder in (own, own / "longshore-i"):
        (folder / "cgroup.controllers").write_text("cpu memory pids io")
        (folder / "cgroup.subtree_control").write_text("")
    proc = _proc(tmp_path, [f"30 1 0:1 / {tmp_path}/cg rw - cgroup2 cgroup2 rw"], ["0::/user"])
    found = find_cgroups("i", proc)
    assert isinstance(found, V2Cgroups)
    group = found.create("s", LIMITS, extra_processes=6)
    folder = own / "longshore-i" / "s"
    assert (folder / "memory.max").read_text() == str(64 * 1024 * 1024)
    assert (folder / "pids.max").read_text() == "16"
    assert (folder / "cpu.max").read_text() == "50000 100000"
    (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert group.oom_kills() == 2
    assert group.procs_files == [str(folder / "cgroup.procs")]
    assert found.names() == {"s"}


def test_version_1_below_our_own_group(tmp_path: Path) -> None:
    mounts = []
    for number, controller in enumerate(("memory", "pids", "cpu")):
        (tmp_path / controller / "own").mkdir(parents=True)
        mounts.append(f"3{number} 1 0:{number} / {tmp_path}/{controller} rw - cgroup cgroup rw,{controller}")
    proc = _proc(tmp_path, mounts, ["3:memory:/own", "2:pids:/own", "1:cpu:/own"])
    found = find_cgroups("i", proc)
    assert isinstance(found, V1Cgroups)
    group = found.create("s", LIMITS, extra_processes=6)
    memory = tmp_path / "memory/own/longshore-i/s"
    assert (memory / "memory.limit_in_bytes").read_text() == str(64 * 1024 * 1024)
    assert (tmp_path / "cpu/own/longshore-i/s/cpu.cfs_quota_us").read_text() == "50000"
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert (group.oom_kills(), len(group.procs_files), group.controllers) == (1, 3, {"memory", "pids", "cpu"})


def test_nothing_mounted_is_nothing_bound(tmp_path: Path) -> None:
    found = find_cgroups("i", _proc(tmp_path, ["1 1 0:1 / / rw - ext4 /dev/x rw"], ["0::/"]))
    assert isinstance(found, NoCgroups)
    assert found.create("s", LIMITS, 1).procs_files == []
