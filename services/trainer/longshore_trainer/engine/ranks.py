"""The ranks of a job: process group, broadcast of bytes, sums and checks. Works the same with a single process."""

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from longshore_common.errors import Internal

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""A rank that waits longer for its peers gives up: one of them is gone. Rank 0 speaks at least every long poll."""


@dataclass(frozen=True)
class Ranks:
    """Which of the job's processes this is."""

    rank: int
    size: int

    @property
    def is_main(self) -> bool:
        """Rank 0 talks to the other services and writes files."""
        return self.rank == 0

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """Rank 0's bytes on every rank; others pass None."""
        if self.size == 1:
            return data or b""
        length = torch.tensor([len(data or b"")], dtype=torch.int64)
        dist.broadcast(length, src=0)
        payload = torch.empty(int(length.item()), dtype=torch.uint8)
        if self.is_main and data:
            payload = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if payload.numel():
            dist.broadcast(payload, src=0)
        return bytes(payload.numpy().tobytes())

    def sum(self, values: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def max(self, values: Tensor) -> Tensor:
        """Maximum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values

    def barrier(self) -> None:
        """Waits for all ranks."""
        if self.size > 1:
            dist.barrier()

    def check_equal(self, digest: str, what: str) -> None:
        """Raises Internal on the ranks whose digest is not rank 0's."""
        expected = self.broadcast_bytes(digest.encode() if self.is_main else None).decode()
        if expected != digest:
            raise Internal(f"rank {self.rank}: {what} differs from rank 0 ({digest} vs {expected})")


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Digest over names and bytes of tensors, in order of name."""
    total = hashlib.sha256()
    for name in sorted(weights):
        total.update(name.encode())
        total.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return "sha256:" + total.hexdigest()


def rank_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables to add so that a process that torchrun did not start is a group of one."""
    if "RANK" in environment:
        return {}
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }


def join() -> Ranks:
    """Joins the process group (gloo) that the environment names."""
    os.environ.update(rank_environment(os.environ))
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
    return Ranks(dist.get_rank(), dist.get_world_size())


def leave() -> None:
    """Leaves the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def threads_per_rank() -> int:
    """The cores this process may use, shared between the ranks of this machine."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
