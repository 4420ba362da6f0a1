"""The data, the study and the points of tools/shared_answers.py."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import shared_answers
import tabled
from pflpipe.study.config import load


@pytest.mark.parametrize("share", shared_answers.SHARES)
def test_a_share_of_what_a_person_keeps_is_the_same_for_all(share):
    asked = shared_answers.kept(share, 300, 135)
    assert asked.shape == (300, shared_answers.KEPT)
    assert all(len(set(row)) == shared_answers.KEPT for row in asked)
    often = np.bincount(asked.ravel(), minlength=135)
    assert (often == 300).sum() == round(share * shared_answers.KEPT)
    if share < 1:  # the others are drawn from all others
        others = often[often < 300]
        assert others.min() > 0
        assert others.std() < 0.2 * others.mean()


def test_the_study_is_one_that_pflpipe_reads_and_its_points_are_means_over_seeds(
    tmp_path, monkeypatch
):
    answers = np.random.default_rng(0).integers(1, 7, (4, 135))
    np.savez(tmp_path / "spi.npz", answers=answers)
    shared_answers.write(tmp_path / "spi.npz", tmp_path / "made")
    monkeypatch.chdir(tmp_path / "made")
    assert load().studies == ("shared_answers",)
    with np.load("spi_100.npz") as made:
        items = made["train_images"][:, 0].astype(int)
        assert np.array_equal(made["train_labels"], answers[made["train_users"], items] >= 4)
    Path("results/tables").mkdir(parents=True)
    Path("results/tables/shared_answers.csv").write_text(tabled.table("test_shared_answers"))
    found = pd.DataFrame(shared_answers.points(Path()))
    assert found["fedrep"].tolist() == [60.5, 70, 80]
    assert found["local_only"].tolist() == [50, 51, 52]
