"""The characters in which byte-level tokenizers spell bytes."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=1)
def bytes_of_characters() -> dict[str, int]:
    """Return the byte that each character of a byte-level piece stands for, as GPT-2 numbers them."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(hidden)}
