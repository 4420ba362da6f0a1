"""DP-FedAvg in pfl (pfl-research, Apple), as its own benchmarks build it: simulated backend,
FedAvg, central Gaussian noise.

Runs in the peers' environment, on plain PyTorch: pfl imports without TensorFlow and nothing of it
is replaced. With several processes it is started by torchrun and divides the cohort itself.
Evaluation ``central`` is pfl's callback on central data. ``each`` adds one line to pfl's FedAvg:
``model.evaluate`` on the common test set, where the local training leaves the trained model "for
evaluation after local training"; pfl's own evaluation there is of the training data, before and
after, and is left out. A user's batches are cut once and not shuffled anew, which is how pfl's
in-memory data sets work and costs less than what pflpipe does.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

import torch
import work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, StringMetricName, Weighted, get_overall_value
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from torch import Tensor, nn
from torch.nn import functional as F

EVALUATED = StringMetricName("common test set | accuracy")


def on_test(name: str) -> StringMetricName:
    """Return the full name of a metric on the common test set."""
    return StringMetricName(f"common test set | {name}")


class Net(nn.Module):
    """A network with the two methods that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.net(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        return F.cross_entropy(self(x), y)

    @torch.inference_mode()
    def metrics(self, x: Tensor, y: Tensor) -> Mapping[str, Weighted]:
        """Return the number of right answers, weighted by that of examples."""
        return {"accuracy": Weighted(int((self(x).argmax(-1) == y).sum()), len(y))}


class EvaluatedFedAvg(FederatedAveraging):
    """FedAvg whose clients evaluate the models that they trained on the common test set."""

    def __init__(self, test: PyTorchTensorDataset) -> None:
        super().__init__()
        self.test = test

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        """Train as FedAvg does, then evaluate."""
        statistics, metrics = super().train_one_user(
            initial_model_state, model, user_dataset, central_context
        )
        return statistics, metrics | model.evaluate(
            self.test, on_test, central_context.model_eval_params
        )


class Turns(TrainingProcessCallback):
    """Takes turns with the other systems between rounds. The last callback, so that evaluation is
    over when it is called."""

    def __init__(self, turns: work.Turns, rounds: int) -> None:
        self.turns, self.rounds = turns, rounds

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Wait for the first turn."""
        self.turns.wait()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Tell of the round and wait for the next turn, if there is one."""
        found = (
            100 * float(get_overall_value(aggregate_metrics[EVALUATED]))
            if EVALUATED in aggregate_metrics
            else None
        )
        self.turns.tell(found)
        if central_iteration + 1 < self.rounds:
            self.turns.wait()
        return False, Metrics()


def main() -> None:
    """Run the rounds, one at a time."""
    asked = work.arguments()
    torch.manual_seed(0)
    job = work.WORKS[asked.work]
    x, y, *held_out = job.data(asked.examples)
    users = {
        user: PyTorchTensorDataset((x[rows], y[rows]))
        for user, rows in enumerate(job.shares(len(y)))
    }
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    test = PyTorchTensorDataset(tuple(held_out))
    net = Net(job.net())
    model = PyTorchModel(
        model=net,
        local_optimizer_create=job.optimizer,
        central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
    )
    noise = GaussianMechanism(
        clipping_bound=work.CLIP_NORM, relative_noise_stddev=work.NOISE_MULTIPLIER
    )
    evaluation = NNEvalHyperParams(local_batch_size=work.EVALUATED_AT_ONCE)
    turns = work.Turns({"pfl": importlib.metadata.version("pfl")})
    callbacks: list[TrainingProcessCallback] = [Turns(turns, asked.rounds)]
    if asked.evaluation == "central":
        callbacks.insert(0, CentralEvaluationCallback(test, evaluation, format_fn=on_test))
    algorithm = EvaluatedFedAvg(test) if asked.evaluation == "each" else FederatedAveraging()
    algorithm.run(
        # evaluation_frequency: that of the training data, which then happens in the first round
        # only
        NNAlgorithmParams(
            asked.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=job.cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(data, data, [WeightByUser(), CentrallyAppliedPrivacyMechanism(noise)]),
        model,
        NNTrainHyperParams(
            local_batch_size=job.batch_size or None,
            local_num_epochs=job.epochs,
            local_learning_rate=job.learning_rate,
        ),
        evaluation,
        callbacks,
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
