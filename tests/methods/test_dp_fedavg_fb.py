"""DP-FedAvg-fb: the personal model is the released model with its head trained as the
hyper-parameters say."""

import torch
import torch.nn.functional as F

from pflpipe.simulation import rounds
from simulations import simulation


def test_personal_head_equals_torch_sgd_on_the_frozen_body():
    settings = {"head_epochs": 3, "head_lr": 0.2, "head_momentum": 0.5, "head_weight_decay": 0.1}
    world = simulation("dp_fedavg_fb", settings, backend="vmap")
    done = rounds.run(world, rounds.start(world))
    everyone = range(world.plan.clients)
    work = [world.work(client, done.round) for client in everyone]

    def hook(state, batches, others):
        return world.method.personalize(done.params, done.server, state, batches, world.task)

    personal = world.run_clients(hook, done.states, everyone, work)
    for client in everyone:
        leaves = [
            done.params[name].clone().requires_grad_() for name in ("head.weight", "head.bias")
        ]
        optimizer = torch.optim.SGD(leaves, lr=0.2, momentum=0.5, weight_decay=0.1)
        steps = list(world.train.schedule(work[client]["head"]))
        assert len(steps) == 3 * -(-len(world.split.train[client]) // world.training.batch_size)
        for batch in steps:
            optimizer.zero_grad()
            F.cross_entropy(
                F.linear(world.network.body(done.params, batch.x, None), *leaves), batch.y
            ).backward()
            optimizer.step()
        for name, value in done.params.items():
            expected = (
                dict(zip(("head.weight", "head.bias"), leaves, strict=True))
                .get(name, value)
                .detach()
            )
            torch.testing.assert_close(personal[name][client], expected, rtol=1e-12, atol=1e-14)
