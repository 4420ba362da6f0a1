"""Methods that send more than parameters: what they send shares one clip bound, and is counted."""

import pytest

from pflpipe import trees
from simulations import CLASSES, finished, plan, simulation, spied, with_rows

MODEL, BODY = 4 * 5 + 4 + CLASSES * 4 + CLASSES, 4 * 5 + 4


@pytest.mark.parametrize(
    ("method", "name", "part", "small", "gain"),
    [
        ("dp_scaffold", "control_scale", "control.", 0.5, 1.2),
        ("fedpac", "centroid_scale", "centroids", 0.5, 1.2),
        ("pfedfda", "mean_scale", "means", 0.1, 1.05),
        ("pfedfda", "covariance_scale", "covariance", 0.1, 1.05),
    ],
)
def test_a_larger_scale_leaves_more_of_the_clip_to_the_model_and_more_noise_to_the_part(
    method, name, part, small, gain
):
    """Labels follow from the rows, so that the clients of pFedFDA trust their own."""

    def lengths(scale):
        world = simulation(method, {name: scale}, plan=plan(rounds=1))
        labels = world.train.x[:, :CLASSES].argmax(1)
        _, ((_, _, released),), _ = spied(with_rows(world, y=labels))
        sent, names = released.clean, [key for key in released.clean if key.startswith(part)]
        model = {key: value for key, value in sent.items() if key in world.network.shapes}
        noise = {key: released.sum[key] - sent[key] for key in names}
        return trees.norm(model).item(), trees.norm(noise).item()

    (short, quiet), (long, loud) = lengths(small), lengths(8 * small)
    assert long > gain * short
    assert loud == pytest.approx(8 * quiet)


@pytest.mark.parametrize(
    ("method", "numbers"),
    [
        ("dp_scaffold", 2 * MODEL),
        ("fedpac", BODY + CLASSES * 4),
        ("pfedfda", BODY + CLASSES * 4 + 4 * 4),
    ],
)
def test_every_part_is_counted_in_the_upload(method, numbers):
    world = simulation(method, plan=plan(rounds=2))
    assert finished(world).uploaded_bits == 2 * 32 * numbers
