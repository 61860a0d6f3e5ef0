"""The seal of a checkpoint's manifest: xxHash64 of its text with zeros for the seal's digits."""
import struct

HEAD = b'{"seal": "'
DIGITS = 16
MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
                      0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


def rotated(x, bits):
    return (x << bits | x >> (64 - bits)) & MASK


def mixed(state, lane):
    return rotated((state + lane * P2) & MASK, 31) * P1 & MASK


def xxh64(data):
    at = 0
    if len(data) >= 32:
        states = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while at + 32 <= len(data):
            lanes = struct.unpack_from("<4Q", data, at)
            states = [mixed(state, lane) for state, lane in zip(states, lanes)]
            at += 32
        h = sum(rotated(state, bits) for state, bits in zip(states, (1, 7, 12, 18))) & MASK
        for state in states:
            h = ((h ^ mixed(0, state)) * P1 + P4) & MASK
    else:
        h = P5
    h = (h + len(data)) & MASK
    while at + 8 <= len(data):
        h = (rotated(h ^ mixed(0, struct.unpack_from("<Q", data, at)[0]), 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= len(data):
        h = (rotated(h ^ struct.unpack_from("<I", data, at)[0] * P1 & MASK, 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        h = rotated(h ^ byte * P5 & MASK, 11) * P1 & MASK
    h = (h ^ h >> 33) * P2 & MASK
    h = (h ^ h >> 29) * P3 & MASK
    return h ^ h >> 32


def sealed(text):
    """The text with the right seal, if it has room for one."""
    end = len(HEAD) + DIGITS
    if not text.startswith(HEAD) or len(text) <= end:
        return text
    return HEAD + b"%016x" % xxh64(HEAD + b"0" * DIGITS + text[end:]) + text[end:]
