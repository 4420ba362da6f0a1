"""A node of a run: its clients train on their own rows, and their states stay in its folder."""

from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from pflpipe.pipeline import secagg
from pflpipe.simulation import remote

app = ClientApp()


def device(context: Context) -> remote.Device:
    """Return the clients in the node's folder; in a simulation it is beside that of the server."""
    own, server = context.node_config, context.run_config["folder"]
    folder = Path(own.get("folder", f"{server}/../nodes/{own.get('partition-id')}"))
    return remote.Device(remote.read(folder)[1], folder / "states")


def asked(message: Message) -> tuple[list[int], remote.Public]:
    """Return the clients that the server asks, and what it sends them."""
    records, facts = message.content.array_records, message.content.config_records["asked"]
    trees = (records[name].to_torch_state_dict() for name in ("params", "server"))
    return facts["clients"], remote.Public(facts["run"], facts["round"], facts.get("bound"), *trees)


@app.query()
def who(message: Message, context: Context) -> Message:
    """Say which clients are here."""
    has = ConfigRecord({"clients": device(context).clients})
    return Message(RecordDict({"has": has}), reply_to=message)


@app.train(mods=[secagg.mod(device)])
def train(message: Message, context: Context) -> Message:
    """Send an update of each client that is asked, masked if the plan says so, and no more."""
    here, (clients, public) = device(context), asked(message)
    updates = {str(one): ArrayRecord(here.update(one, public)) for one in clients}
    return Message(RecordDict(updates), reply_to=message)


@app.evaluate()
def keep(message: Message, context: Context) -> Message:
    """Write the personal models into the folder and send nothing."""
    here, (clients, public) = device(context), asked(message)
    for one in clients:
        here.keep_model(one, public)
    return Message(RecordDict(), reply_to=message)
