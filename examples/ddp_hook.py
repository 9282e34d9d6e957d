"""Train a small model with DistributedDataParallel, its gradients summed by a synthesized allreduce.

    synth allreduce --topo ring4 --size 64KB -o allreduce.xml
    torchrun --nproc-per-node 4 examples/ddp_hook.py allreduce.xml

Prints the losses with the hook and without: the same but for the order in which gradients are added.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from synth.execute import SynthGroup


def train(group: SynthGroup | None, steps: int = 5) -> list[float]:
    """The mean loss over all ranks after each step; gradients go through `group`, through DDP's own allreduce where it is None."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)))
    if group is not None:
        model.register_comm_hook(None, group.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(steps):
        inputs = torch.randn(8, 16, generator=data)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        losses.append(float(mean))
    return losses


def main(path: str) -> None:
    """One rank of `torchrun`."""
    dist.init_process_group("gloo")
    group = SynthGroup([path])
    with_hook, without = train(group), train(None)
    if dist.get_rank() == 0:
        print("with the hook:", *(f"{loss:.6f}" for loss in with_hook))
        print("without:      ", *(f"{loss:.6f}" for loss in without))
        print(f"{group.calls['synth']} allreduces by the file, {group.calls['torch']} by torch")
    group.communicator.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
