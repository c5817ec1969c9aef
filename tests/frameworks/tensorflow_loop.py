"""Trains a small network with TensorFlow on the CPU, the same way each time.

TensorFlow's variables own their memory, and none can be made of memory that is there already. So there
are none here: the parameters and Adam's state are numpy arrays, which TensorFlow sees as tensors in each
step by DLPack without a copy (which is checked); it computes the loss, the gradients and all new values
from them, and these are written into the arrays. With `--parameters vram` the arrays lie in VRAM, spread
over all GPUs, mapped to the CPU through the render nodes. So what is carried from one step to the next
is in VRAM alone. What lies in the process's own memory for the length of a step are the activations, the
gradients and the new values. No kernel runs on a GPU; what is computed is computed by the CPU.
"""

import ctypes
import os

# Before TensorFlow is loaded: no hints about the machine, and sums in one order.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import tensorflow as tf

from losses import Losses, options

SEED = 20260101
BATCH = 32
LAYERS = [64, 128, 128, 8]
RATE, BETA_1, BETA_2, EPSILON = 1e-3, 0.9, 0.999, 1e-7
# TensorFlow takes memory as it is from this alignment on.
ALIGNMENT = 64


class OwnMemory:
    """Buffers in the process's own memory."""

    def allocate(self, size):
        whole = (ctypes.c_uint8 * (size + ALIGNMENT))()
        skip = -ctypes.addressof(whole) % ALIGNMENT
        return (ctypes.c_uint8 * size).from_buffer(whole, skip)

    def describe(self):
        return "own memory"


def memory(where):
    """What arrays are made in."""
    if where == "cpu":
        return OwnMemory()
    import vram

    return vram.Pool()


def array(pool, values):
    """An array of these values, in a buffer of its own."""
    values = np.asarray(values, dtype=np.float32)
    there = np.frombuffer(pool.allocate(values.nbytes), dtype=np.float32).reshape(values.shape)
    there[...] = values
    return there


def tensor(there):
    """The same memory as a tensor, for one step."""
    return tf.experimental.dlpack.from_dlpack(there.__dlpack__())


def expect_no_copy(there):
    """Fails if a tensor has memory of its own."""
    seen = tensor(there)
    before = there.flat[0]
    there.flat[0] = before + 1
    changed = seen.numpy().flat[0] == before + 1
    there.flat[0] = before
    if not changed:
        raise RuntimeError("TensorFlow has copied the parameters")


def predict(parameters, inputs):
    """What the network says."""
    weights, biases = parameters[0::2], parameters[1::2]
    values = inputs
    for layer, (weight, bias) in enumerate(zip(weights, biases)):
        values = values @ weight + bias
        if layer < len(weights) - 1:
            values = tf.tanh(values)
    return values


@tf.function
def train(step, parameters, first, second, inputs, wanted):
    """One step: the loss, and the new values of all parameters and of Adam's state."""
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        loss = tf.reduce_mean(tf.square(predict(parameters, inputs) - wanted))
    gradients = tape.gradient(loss, parameters)
    first = [BETA_1 * m + (1 - BETA_1) * g for m, g in zip(first, gradients)]
    second = [BETA_2 * v + (1 - BETA_2) * g * g for v, g in zip(second, gradients)]
    rate = RATE * tf.sqrt(1 - tf.pow(BETA_2, step)) / (1 - tf.pow(BETA_1, step))
    parameters = [
        p - rate * m / (tf.sqrt(v) + EPSILON) for p, m, v in zip(parameters, first, second)
    ]
    return loss, parameters + first + second


def main():
    arguments = options(__doc__)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    random = np.random.default_rng(SEED)
    pool = memory(arguments.parameters)
    parameters = []
    for inputs, outputs in zip(LAYERS, LAYERS[1:]):
        parameters.append(array(pool, random.normal(0, inputs**-0.5, (inputs, outputs))))
        parameters.append(array(pool, np.zeros(outputs)))
    count = len(parameters)
    state = parameters + [array(pool, np.zeros_like(p)) for p in parameters + parameters]
    for there in state:
        expect_no_copy(there)
    print(f"parameters: {pool.describe()}", flush=True)
    teacher = random.normal(0, 1, (LAYERS[0], LAYERS[-1])).astype(np.float32)
    losses = Losses(arguments.losses, arguments.pause)
    for step in range(arguments.steps):
        batch = random.normal(0, 1, (BATCH, LAYERS[0])).astype(np.float32)
        seen = [tensor(there) for there in state]
        loss, new = train(
            tf.constant(step + 1, dtype=tf.float32),
            seen[:count],
            seen[count : 2 * count],
            seen[2 * count :],
            tf.constant(batch),
            tf.constant(np.tanh(batch @ teacher / 8)),
        )
        for there, value in zip(state, new):
            there[...] = value.numpy()
        losses.step(step, float(loss))
    losses.end(state)


if __name__ == "__main__":
    main()
