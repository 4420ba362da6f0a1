"""The server of a run: one Strategy, whose every step is a call of pflpipe."""

import time
from collections.abc import Iterable
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from pflpipe.pipeline import flower, secagg
from pflpipe.simulation import remote

app = ServerApp()


class Release(Strategy):
    """Cohorts, clip, noise, server optimizer and server state of a run."""

    def __init__(self, server: remote.Server, timeout: float) -> None:
        self.server, self.timeout = server, timeout
        self.nodes: dict[str, int] = {}  # client -> the node that has it
        self.met: set[int] = set()

    def configure_train(self, server_round, arrays, config, grid: Grid) -> list[Message]:
        """Ask the clients that are drawn, after new nodes have said which clients they have."""
        new = [Message(RecordDict(), node, "query") for node in {*grid.get_node_ids()} - self.met]
        for reply in grid.send_and_receive(new, timeout=self.timeout) if new else ():
            if reply.has_content():
                self.met.add(node := reply.metadata.src_node_id)
                self.nodes |= dict.fromkeys(map(str, reply.content["has"]["clients"]), node)
        return self._messages("train", self.server.cohort)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Release one round: a drawn client without an update counts as zero."""
        updates = {}
        for reply in filter(Message.has_content, replies):
            node, sent = reply.metadata.src_node_id, reply.content.array_records
            # A node speaks for its own clients alone.
            for client in (one for one in sent if self.nodes.get(one) == node):
                updates[int(client)] = sent[client].to_torch_state_dict()
        counts = {"drawn": len(self.server.cohort), "answered": self.server.step(updates)}
        return ArrayRecord(self.server.public.params), MetricRecord(counts)

    def configure_evaluate(self, server_round: int, arrays, config, grid) -> list[Message]:
        """After the last round, let every client make its personal model, which stays with it."""
        last = server_round == self.server.simulation.plan.rounds
        return self._messages("evaluate", map(int, self.nodes)) if last else []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Personal models are not sent."""

    def summary(self) -> None:
        """Print the run."""
        print(f"{self.server.simulation.name}: {self.server.simulation.plan}")

    def _messages(self, kind: str, clients: Iterable[int]) -> list[Message]:
        public, asked = self.server.public, {}
        for client in clients:
            if (node := self.nodes.get(str(client))) is not None:
                asked.setdefault(node, []).append(client)
        facts = {"run": public.run, "round": public.round}
        facts |= {} if public.bound is None else {"bound": public.bound}
        sent = {"params": ArrayRecord(public.params), "server": ArrayRecord(public.server)}
        each = {node: ConfigRecord(facts | {"clients": some}) for node, some in asked.items()}
        return [Message(RecordDict(sent | {"asked": it}), node, kind) for node, it in each.items()]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the run, write its files and its certificate."""
    settings = context.run_config
    folder, timeout = Path(settings["folder"]), settings["timeout"]
    while len([*grid.get_node_ids()]) < settings["nodes"]:
        time.sleep(1)
    cell, server = remote.begin(folder)
    grid = secagg.Summed(grid, server)  # of which the server sees sums alone, if the plan says so
    rounds = server.simulation.plan.rounds
    Release(server, timeout).start(grid, ArrayRecord(server.public.params), rounds, timeout)
    print(f"certificate: {flower.finish(cell, server, folder)}")
