"""Counts in VRAM: what a container can run that has Python and libhsakmt and nothing else.

`counter.py FILE [BYTES]` fills memory of each GPU with a pattern of its own and counts in the first word
of each, again and again. FILE has the last count in a line, `COUNT ok`, or what was wrong.
"""

import os
import sys
import time

import vram

WORD = 8


def pattern(seed, size):
    """Bytes that differ from GPU to GPU and from page to page."""
    page = bytes((seed * 29 + at * 7) & 0xFF for at in range(4093))
    return (page * (size // len(page) + 1))[:size]


def main():
    path = sys.argv[1]
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 1 << 20
    gpus = vram.gpus()
    buffers = [memoryview(gpu.allocate(size)).cast("B") for gpu in gpus]
    for seed, buffer in enumerate(buffers):
        buffer[:] = pattern(seed, size)
        buffer[:WORD] = bytes(WORD)
    count = 0
    while True:
        verdict = "ok"
        for seed, buffer in enumerate(buffers):
            if int.from_bytes(buffer[:WORD], "little") != count:
                verdict = f"the count of GPU {seed} is wrong"
            if buffer[WORD:] != pattern(seed, size)[WORD:]:
                verdict = f"the memory of GPU {seed} is wrong"
            buffer[:WORD] = (count + 1).to_bytes(WORD, "little")
        count += 1
        with open(f"{path}.new", "w", encoding="ascii") as report:
            report.write(f"{count} {verdict}\n")
        os.replace(f"{path}.new", path)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
