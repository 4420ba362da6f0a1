"""DP-FedAvg in Flower (flwr), as its examples build it: an app in the simulation runtime on Ray,
FedAvg, server-side clipping.

Runs in the peers' environment. Ray holds one actor of one thread for every process asked for; an
actor reads the examples once. A client's training is the plain PyTorch loop of Flower's examples on
slices of tensors, which are cheaper than the examples' DataLoader. Evaluation ``central`` is the
strategy's ``evaluate_fn``; ``each`` is done by the client after its training. CPU seconds are those
of this process and all that it started, Ray's own included (Linux alone counts them here).
"""

from __future__ import annotations

import importlib.metadata
import os
import statistics
import time
from pathlib import Path

# Both frameworks report their use over the network unless told otherwise.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import torch
import work
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional as F

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One client's round: load the model, train, evaluate if asked, send the model back."""
    torch.set_num_threads(1)
    config = message.content["config"]
    job = work.WORKS[config["work"]]
    x, y, test_x, test_y = job.data(config["examples"])
    rows = torch.from_numpy(job.shares(len(y))[int(context.node_config["partition-id"])])
    net = job.net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = job.optimizer(net.parameters(), lr=job.learning_rate)
    for _ in range(job.epochs):
        for batch in rows[torch.randperm(len(rows))].split(job.batch_size or len(rows)):
            optimizer.zero_grad()
            F.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(rows)})
    if config["evaluation"] == "each":
        metrics["accuracy"] = work.accuracy(net, test_x, test_y)
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its living descendants, from the system's table
    of processes."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        children.setdefault(int(fields[1]), []).append(int(folder.name))
        used[int(folder.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    found, waiting = time.process_time(), list(children.get(os.getpid(), []))
    while waiting:
        process = waiting.pop()
        found += used[process]
        waiting += children.get(process, [])
    return found


def main() -> None:
    """Run the rounds, one at a time."""
    asked = work.arguments()
    job = work.WORKS[asked.work]
    torch.manual_seed(0)
    versions = {name: importlib.metadata.version(name) for name in ("flwr", "ray")}
    turns = work.Turns(versions, cpu_seconds)
    server_app = ServerApp()
    of_clients: list[float] = []

    def keep_accuracies(replies: list[RecordDict], weight: str) -> MetricRecord:
        of_clients[:] = [
            float(reply["metrics"]["accuracy"])
            for reply in replies
            if "accuracy" in reply["metrics"]
        ]
        return MetricRecord()

    def after_round(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        found = statistics.fmean(of_clients) if of_clients else None
        if asked.evaluation == "central" and server_round:
            net = job.net()
            net.load_state_dict(arrays.to_torch_state_dict())
            found = work.accuracy(net, *job.data(asked.examples)[2:])
        if server_round:
            turns.tell(found)
        if server_round < asked.rounds:
            turns.wait()
        return None

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        fedavg = FedAvg(
            fraction_evaluate=0.0,
            fraction_train=job.cohort / job.clients,
            min_train_nodes=job.cohort,
            min_available_nodes=job.clients,
            train_metrics_aggr_fn=keep_accuracies,
        )
        strategy = DifferentialPrivacyServerSideFixedClipping(
            fedavg, work.NOISE_MULTIPLIER, work.CLIP_NORM, job.cohort
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(job.net().state_dict()),
            num_rounds=asked.rounds,
            train_config=ConfigRecord(
                {"work": asked.work, "examples": asked.examples, "evaluation": asked.evaluation}
            ),
            evaluate_fn=after_round,
        )

    run_simulation(
        server_app,
        client_app,
        num_supernodes=job.clients,
        backend_config={
            "init_args": {"num_cpus": asked.processes, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
