"""Number arrays as bytes, little endian: how token ids, masks and logprobs travel and are stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def pack_i32(values: Sequence[int] | npt.NDArray[np.int32]) -> bytes:
    """int32 array as bytes."""
    return np.asarray(values, dtype="<i4").tobytes()


def unpack_i32(data: bytes) -> npt.NDArray[np.int32]:
    """Bytes as int32 array (read-only)."""
    return np.frombuffer(data, dtype="<i4")


def pack_f32(values: Sequence[float] | npt.NDArray[np.float32]) -> bytes:
    """float32 array as bytes."""
    return np.asarray(values, dtype="<f4").tobytes()


def unpack_f32(data: bytes) -> npt.NDArray[np.float32]:
    """Bytes as float32 array (read-only)."""
    return np.frombuffer(data, dtype="<f4")


def pack_u8(values: Sequence[int] | npt.NDArray[np.uint8]) -> bytes:
    """uint8 array as bytes."""
    return np.asarray(values, dtype=np.uint8).tobytes()


def unpack_u8(data: bytes) -> npt.NDArray[np.uint8]:
    """Bytes as uint8 array (read-only)."""
    return np.frombuffer(data, dtype=np.uint8)
