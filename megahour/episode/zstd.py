"""zstd frames unpacked, without memory for sizes that damage made up."""

from __future__ import annotations

import zstandard

from megahour.episode.model import EpisodeError

BLOCK_BYTES, LEAST_BLOCK_BYTES = 128 * 1024, 4
"""A block gives no more than this, and takes no less (RFC 8878, 3.1.1.2)."""


def unpack(packed: bytes | memoryview, size_bytes: int | None = None) -> bytes:
    """What a frame holds: `size_bytes` where that is known, else as much as the frame says and so few bytes can give.

    Raises:
        EpisodeError: `corrupt`.
    """
    try:
        says = zstandard.frame_content_size(packed)
        if says < 0 or says > len(packed) // LEAST_BLOCK_BYTES * BLOCK_BYTES or size_bytes not in (None, says):
            raise EpisodeError(
                "corrupt", f"{len(packed)} packed bytes say that they hold {says}, and should hold {size_bytes}"
            )
        return zstandard.ZstdDecompressor().decompress(packed)
    except zstandard.ZstdError as error:
        raise EpisodeError("corrupt", f"Packed bytes cannot be unpacked: {error}") from error
