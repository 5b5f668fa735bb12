"""`cluster down` leaves nothing, and `up` clears what a killed session left: in network, mounts and processes apart."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the cluster does"),
]

SCRIPT = Path(__file__).with_name("cluster")
APART = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-eu", "-c")
# Folders that a node uses beside its own state; in a new mount namespace they are empty.
PREPARE = """
# Of pods that run beside the test.
for mount in $(grep -oE ' /run/netns/[^ ]*' /proc/mounts); do umount -l "$mount"; done
mkdir -p /var/lib/cni /var/lib/kubelet /var/log/containers
for folder in /run /var/lib/cni /var/lib/kubelet /var/log/containers; do mount -t tmpfs none $folder; done
ip link set lo up
pretend() { bash -c 'exec -a "$0" bash -c "while :; do sleep 1; done" - "$1"' "$@" & sleep 0.5; }
wait_for() { for _ in $(seq 300); do "$@" >/dev/null 2>&1 && return; sleep 0.2; done; "$@"; }
"""

Run = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def state() -> Iterator[Path]:
    """Folder of a cluster's state; its name is short, sockets are in it."""
    folder = Path(tempfile.mkdtemp(prefix="longshore-"))
    folder.rmdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
    for cgroup in Path("/sys/fs/cgroup").glob(f"**/{folder.name}/**/"):
        cgroup.rmdir()


@pytest.fixture
def apart(state: Path) -> Run:
    """Runs a script where nothing else runs; $CLUSTER is the command, $D its state."""

    def run(script: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "CLUSTER": str(SCRIPT), "D": str(state), "CLUSTER_STATE": str(state)}
        command = [*APART, PREPARE + script]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)

    return run


def test_what_is_left_is_named_and_down_removes_it(apart: Run) -> None:
    done = apart(
        """
        mkdir -p "$D/kubelet/volume" && mount -t tmpfs none "$D/kubelet/volume"
        pretend kubelet "--config=$D/kubelet.yaml"
        pretend editor "$D/kubelet.yaml" && editor=$!
        ip link add cni0 type bridge && mkdir -p /run/netns && touch /run/netns/cni-123
        mount --bind /proc/self/ns/net /run/netns/cni-123 && ip netns add cni-1234   # Which covers the one before.
        iptables -N KUBE-TEST && iptables -A INPUT -j KUBE-TEST && iptables -A INPUT -s 192.0.2.1 -j DROP
        ipset create KUBE-TEST-SET hash:ip
        mkdir -p /sys/fs/cgroup/memory/${D##*/}/kubepods 2>/dev/null || mkdir -p /sys/fs/cgroup/${D##*/}/kubepods
        "$CLUSTER" check-clean && exit 9
        echo --- >&2
        "$CLUSTER" down
        "$CLUSTER" check-clean
        kill -0 $editor
        iptables-save | grep '^-A'
        """
    )
    before, after = done.stderr.split("---\n")
    for what in (
        "folder",
        "processes kubelet",
        "cni0",
        "iptables",
        "KUBE-TEST-SET",
        "cni-123 cni-1234",
        "mounts",
        "cgroups",
    ):
        assert what in before
    assert after.endswith("cluster: clean\n")
    assert done.stdout == "-A INPUT -s 192.0.2.1/32 -j DROP\n"
    assert done.returncode == 0


def test_down_does_nothing_beside_another_kubernetes(apart: Run) -> None:
    done = apart(
        """
        pretend kubelet --config=/etc/kubernetes/kubelet.yaml && other=$!
        iptables -N KUBE-OTHER
        "$CLUSTER" down && exit 9
        kill -0 $other && iptables -n -L KUBE-OTHER >/dev/null
        """
    )
    assert "another Kubernetes runs here" in done.stderr
    assert done.returncode == 0


def test_up_names_who_has_a_port(apart: Run) -> None:
    done = apart('python3 -m http.server 6443 >/dev/null 2>&1 & sleep 1; "$CLUSTER" up')
    assert done.returncode == 2
    assert 'port 6443 is taken by "python3"' in done.stderr


def test_a_killed_cluster_comes_up_again_and_leaves_nothing(apart: Run) -> None:
    done = apart(
        """
        things() {
          iptables-save | grep '^-A'; ip6tables-save | grep '^-A'; ipset list -n; ip -o link | grep -v ': lo:'
          find /run/netns /run/containerd/s -mindepth 1; ps -e -o comm=; grep -F -e "$D" -e /run/netns/ /proc/mounts
        }
        things >"$D-before" 2>/dev/null || true
        pod() {
          wait_for kubectl get serviceaccount default
          kubectl run one --image=localhost/pause:1 --image-pull-policy=Never --restart=Never >/dev/null
          kubectl wait --for=condition=Ready pod/one --timeout=60s >/dev/null
        }
        "$CLUSTER" up
        eval "$("$CLUSTER" env)"
        pod
        kill -KILL -1   # All but this shell, as the end of a session does.
        "$CLUSTER" up
        pod
        "$CLUSTER" status
        "$CLUSTER" down
        "$CLUSTER" check-clean
        things >"$D-after" 2>/dev/null || true
        new=$(comm -13 <(sort "$D-before") <(sort "$D-after"))   # What was there before may go: it is another's.
        [ -z "$new" ] || { echo "new: $new"; exit 8; }
        """
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cleaning up what a killed session left" in done.stderr
    assert done.stderr.endswith("cluster: clean\n")
