"""Anyone's release through the open door: what is sound passes, each fault is caught, and mistakes
of the program are one line."""

import random
import re

import cheats
import numpy as np
import pytest
import torch
from cheats import CLAIM, clipped, mean_of, noise
from honest import laplace, single_messages

import pflpipe
import tabled
from pflpipe.auditing.arrays import ReleaseError
from pflpipe.errors import PrivacyError
from pflpipe.report.audit_table import COLUMNS

TABLES = tabled.table("test_claims")


def sound(messages, weights, rng):
    return mean_of(clipped(messages).sum(axis=0), rng)


def audited(release, seconds=2.0, **claim):
    return pflpipe.audit(release, pflpipe.Claim(**CLAIM | claim), seconds=seconds)


@pytest.mark.slow
def test_noise_of_the_uniform_mean_on_a_weighted_one_is_measured_and_said_in_a_sentence():
    """The mechanism of Flower 1.41's DifferentialPrivacyServerSideFixedClipping(FedAvg()), in our
    words: each update is clipped to C, updates are averaged with the clients' numbers of rows as
    weights, and the noise is that of the uniform mean, C z / m."""
    found = audited(cheats.of_rows)
    assert re.fullmatch(
        r"one client moves the result by \.91 where the noise covers \.(10|099): the true "
        r"multiplier is \.11, epsilon (79|80) and not 4\.4 \(one round, delta 1e-5\)",
        found.sentence,
    )
    assert found.verdict == "refuted"
    assert found.situation.startswith("this client has 91 % of the rows; it sends ")
    assert found.row["sensitivity"] == pytest.approx(9.1, rel=0.05)
    assert found.row["noise"] == pytest.approx(0.1 / 0.91, rel=0.01)
    assert str(found).startswith(found.sentence)


@pytest.mark.slow
def test_a_sound_release_is_kept_and_its_row_has_the_columns_of_the_table_of_audits():
    found = audited(sound)
    assert found.verdict == "kept"
    assert found.row.keys() | {"method", "profile", "departures"} == set(COLUMNS)
    assert found.row["noise"] == pytest.approx(1, abs=0.01)
    assert found.row["sensitivity"] == pytest.approx(1, abs=0.06)
    assert found.row["epsilon_claimed"] == pytest.approx(4.38, abs=0.01)
    assert found.row["epsilon_lower"] <= found.row["epsilon_claimed"]
    assert 0.97 < found.row["detects"] < 1
    assert found.notes == ()


@pytest.mark.slow
def test_a_long_result_is_seen_where_its_noise_is_least():
    def forgets(messages, weights, rng):
        drawn = noise(rng, messages.shape[1])
        drawn[-3] /= 10
        return (clipped(messages).sum(axis=0) + drawn) / 10

    for release, verdict in ((sound, "kept"), (forgets, "refuted")):
        assert audited(release, seconds=0.5, dimension=300).verdict == verdict


class Fading:
    """Sound for three rounds; from then on a tenth of the noise."""

    def start(self, clients, dimension):
        self.rounds = 0

    def step(self, messages, weights, rng):
        self.rounds += 1
        drawn = noise(rng, messages.shape[1], 1.0 if self.rounds <= 3 else 0.1)
        return (clipped(messages).sum(axis=0) + drawn) / 10


@pytest.mark.slow
def test_a_release_with_a_state_is_begun_in_every_run_and_attacked_over_its_rounds():
    fading = audited(Fading, rounds=6)
    assert (fading.row["flagged_coupled"], fading.verdict) == (False, "refuted"), fading
    assert "recognises runs" in fading.sentence
    shared = audited(cheats.EqualInAllRounds, rounds=3)
    assert float(shared.row["sensitivity"]) == float("inf")
    assert "no epsilon holds" in shared.sentence


class Halving:
    """After the first round, the second half of the result has no noise; ``sent`` says whether
    messages still are in it."""

    def __init__(self, sent):
        self.sent = sent

    def start(self, clients, dimension):
        self.first = True

    def step(self, messages, weights, rng):
        drawn, total = noise(rng, messages.shape[1]), clipped(messages).sum(axis=0)
        if not self.first:
            drawn[20:] = 0
            total[20:] *= self.sent
        self.first = False
        return (total + drawn) / 10


@pytest.mark.slow
def test_a_later_round_may_release_less_than_the_first_but_nothing_without_noise():
    assert audited(Halving(sent=False), seconds=0.5, rounds=3).verdict == "kept"
    bare = audited(Halving(sent=True), seconds=0.5, rounds=3)
    assert float(bare.row["sensitivity"]) == float("inf")
    assert bare.verdict == "refuted"


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["zero_out", "add_remove", "replace_one"])
def test_a_claim_is_tried_with_its_own_neighbours(adjacency):
    """A mean of m - 1 messages is up to 2 C / m away from that of m, so removing a client halves
    its multiplier; replacing one does so by definition, which the epsilon of the claim counts."""
    found = audited(cheats.mean_of_whoever_is_there, adjacency=adjacency)
    assert found.verdict == ("refuted" if adjacency == "add_remove" else "kept")
    if adjacency == "add_remove":
        # The size of the noise follows the number of clients, which only an attacker judges.
        assert "recognises runs" in found.sentence
    if adjacency == "replace_one":
        half = pflpipe.Claim(clients=10, noise_multiplier=0.5, delta=1e-5)
        assert found.row["epsilon_claimed"] == half.epsilon_of(0.5)


@pytest.mark.slow
def test_drawn_cohorts_single_messages_and_laplace_noise_are_audited_too():
    def sharing(messages, weights, rng):
        return clipped(messages) + noise(rng, messages.shape[1])

    drawn = {"clients": 40, "sample_rate": 0.25, "rounds": 10, "adjacency": "add_remove"}
    local, pure = {"trust": "local"}, {"mechanism": "laplace", "delta": 0.0}
    for claim, kept, refuted in (
        (drawn, sound, cheats.mean_of_whoever_is_there),  # which shows how many were drawn
        (local, single_messages, sharing),
        (pure, laplace, sound),  # an L2 clip under noise for an L1 length
    ):
        assert audited(kept, **claim).verdict == "kept"
        assert audited(refuted, **claim).verdict == "refuted"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_message_that_is_not_finite_must_not_show_in_the_result():
    found = audited(cheats.nan_stays)
    assert found.verdict == "refuted"
    assert found.sentence.startswith("a message of NaN makes the result NaN")


def test_an_epsilon_below_that_of_the_multiplier_is_refuted_by_arithmetic():
    found = audited(sound, epsilon=2.0, dimension=4)
    assert found.verdict == "refuted"
    said = "noise of multiplier 1.0 gives epsilon 4.4 and not 2.0 (one round, delta 1e-5)"
    assert found.sentence == said


def test_noise_of_global_generators_is_repeated_and_they_are_left_as_they_were():
    def legacy(messages, weights, rng):
        drawn = torch.randn(messages.shape[1]) * random.choice((-1, 1))
        return (torch.from_numpy(clipped(messages).sum(axis=0)) + drawn) / 10

    random.seed(1)
    expected, before = random.Random(1).random(), torch.get_rng_state()
    assert audited(legacy, dimension=4).verdict == "kept"
    assert random.random() == expected
    assert torch.equal(torch.get_rng_state(), before)


MISTAKES = {
    "fails": (lambda rows: rows[11], "IndexError: index 11 is out of bounds"),
    "of another shape": (
        lambda rows: rows[:, :, None],
        "shape of the result; got (10, 40, 1); expected [d]",
    ),
    "of lists": (lambda rows: [rows], "result; got 'list'; expected an array or tensor"),
    "unseeded": (
        lambda rows: rows.sum(axis=0) + np.random.default_rng().normal(size=rows.shape[1]),
        "two calls with the same rng; got 'different results'",
    ),
    "divides by zero": (
        lambda rows: (rows / np.linalg.norm(rows, axis=1, keepdims=True)).sum(axis=0),
        "result of a client that sends zeros; got 'NaN or infinity'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_release_that_cannot_be_tried_is_one_line(mistake):
    result, words = MISTAKES[mistake]

    def mine(messages, weights, rng):
        return result(messages)

    with pytest.raises(ReleaseError) as refused:
        audited(mine)
    assert str(refused.value).startswith(f"mine: {words}")


@pytest.mark.parametrize(("claim", "words"), TABLES["a claim that nobody can have is refused"])
def test_a_claim_that_nobody_can_have_is_refused(claim, words):
    with pytest.raises(PrivacyError, match=words):
        audited(sound, **claim)


WORDS = ("--clients", "10", "--noise-multiplier", "1", "--delta", "1e-5", "--dimension", "4")
QUICK = ("--seconds", "2")


def test_the_file_of_init_is_kept_and_half_its_noise_is_refuted(ran, here):
    assert ran("init", "--audit").out.startswith("my_release.py: written\nnext: ")
    file = here / "my_release.py"
    with file.open("a") as text:
        text.write('\nwith open("ran", "a") as log:\n    log.write("once")\n')
    printed = ran("audit", "my_release.py:release", *WORDS, *QUICK, "--fields").out
    assert printed.startswith("this audit finds nothing against epsilon 4.4 ")
    assert "verdict              kept\n" in printed
    assert (here / "ran").read_text() == "once"
    text = file.read_text()
    assert "CLIP_NORM, NOISE_MULTIPLIER = 1.0, 1.0" in text
    file.write_text(text.replace("= 1.0, 1.0", "= 1.0, 0.5"))
    printed = ran("audit", "my_release.py:release", *WORDS, *QUICK, code=1).out
    assert "the true multiplier is .50" in printed.splitlines()[0]
    assert "verdict  " not in printed, "its fields are printed on request"
    ran("init", "--audit", code=2)  # it is not written over


@pytest.mark.parametrize(("text", "words"), TABLES["refused files"])
def test_what_cannot_be_tried_is_one_line_and_exit_code_2(text, words, ran, here):
    (here / "my_release.py").write_text(text)
    printed = ran("audit", "my_release.py:release", *WORDS, code=2)
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(f"error: {words}")
