"""Trains a small network with PyTorch on the CPU, the same way each time.

With `--parameters vram` all parameters and all of Adam's state lie in VRAM, spread over all GPUs,
mapped to the CPU through the render nodes: tensors are views of that memory, and the training reads and writes
it in place. No kernel runs on a GPU; what is computed is computed by the CPU. Gradients and activations
are in the process's own memory.
"""

import os

# Before PyTorch is loaded: sums in one order.
os.environ["OMP_NUM_THREADS"] = "1"

import torch

from losses import Losses, options

SEED = 20260101
BATCH = 32
INPUTS, HIDDEN, OUTPUTS = 64, 128, 8


def network():
    """Two hidden layers."""
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, HIDDEN),
        torch.nn.Tanh(),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.Tanh(),
        torch.nn.Linear(HIDDEN, OUTPUTS),
    )


def adams_state(optimizer):
    """Adam's state of each parameter, there before the first step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter.detach()),
                "exp_avg_sq": torch.zeros_like(parameter.detach()),
            }
    return optimizer.state


def move_to_vram(parameters, state):
    """Puts all of them into VRAM."""
    import vram

    pool = vram.Pool()

    def moved(tensor):
        buffer = pool.allocate(tensor.numel() * tensor.element_size())
        there = torch.frombuffer(buffer, dtype=tensor.dtype).view(tensor.shape)
        there.copy_(tensor)
        return there

    for parameter in parameters:
        parameter.data = moved(parameter.data)
        state[parameter] = {name: moved(tensor) for name, tensor in state[parameter].items()}
    print(f"parameters: {pool.describe()}", flush=True)


def main():
    arguments = options(__doc__)
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = network()
    teacher = torch.randn(INPUTS, OUTPUTS)
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-3, foreach=False)
    state = adams_state(optimizer)
    if arguments.parameters == "vram":
        move_to_vram(parameters, state)
    where = [parameter.data_ptr() for parameter in parameters]
    losses = Losses(arguments.losses, arguments.pause)
    for step in range(arguments.steps):
        inputs = torch.randn(BATCH, INPUTS)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), torch.tanh(inputs @ teacher / 8))
        loss.backward()
        optimizer.step()
        losses.step(step, loss.item())
    # Nothing replaced the memory that was to be trained in.
    assert where == [parameter.data_ptr() for parameter in parameters]
    tensors = [parameter.detach() for parameter in parameters]
    tensors += [tensor for parameter in parameters for tensor in state[parameter].values()]
    losses.end(tensor.numpy() for tensor in tensors)


if __name__ == "__main__":
    main()
