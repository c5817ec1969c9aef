"""What the training loops have in common: their options, and the file of losses.

A line for each step, `STEP LOSS` with the loss as an exact hexadecimal number, written by one write
before the next step begins. The last line is `end CHECKSUM`, of all parameters and of the optimizer's
state: two runs that trained alike have the same file.
"""

import argparse
import hashlib
import time


def options(description):
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--losses", required=True, help="the file that losses are written to")
    parser.add_argument("--parameters", choices=["cpu", "vram"], default="cpu")
    parser.add_argument("--pause", type=float, default=0.01, help="seconds between steps")
    return parser.parse_args()


class Losses:
    """The file."""

    def __init__(self, path, pause):
        # Each write is one call of the kernel.
        self._file = open(path, "wb", buffering=0)
        self._pause = pause

    def step(self, number, loss):
        """Writes a line and waits a little: so a dump falls into the middle of the training."""
        self._file.write(f"{number} {loss.hex()}\n".encode())
        time.sleep(self._pause)

    def end(self, arrays):
        """Writes the last line: the checksum of arrays that have a buffer."""
        checksum = hashlib.sha256()
        for array in arrays:
            checksum.update(memoryview(array).cast("B"))
        self._file.write(f"end {checksum.hexdigest()}\n".encode())
