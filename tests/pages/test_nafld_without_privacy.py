"""What NAFLD's rows allow without privacy, on people whose answers are known."""

import numpy as np

import nafld_without_privacy


def test_own_answers_of_a_kind_decide_and_the_model_where_a_person_has_none():
    """Of 40 people half are above in the first kind and half below; in the second all are above."""
    users = np.repeat(np.arange(40), 4)
    kinds = np.tile([0, 0, 0, 1], 40)
    labels = np.where(kinds == 1, 1, users % 2)
    rows = np.hstack([np.eye(3)[kinds], np.zeros((160, 2))])
    asked = np.tile([0, 1], 40)
    tests = np.repeat(np.arange(40), 2)
    seen = (kinds == 0) | (users < 20)  # the others have no row of the second kind
    answers = np.where(asked == 1, 1, tests % 2)
    found = nafld_without_privacy.accuracies(
        (rows[seen], labels[seen], users[seen]),
        (np.hstack([np.eye(3)[asked], np.zeros((80, 2))]), answers, tests),
    )
    # One model is right in the second kind, and in half of the first; alone errs in the second for
    # the ten people who are below in the first and have no row of the second.
    np.testing.assert_allclose(found, [75, 75, 87.5, 100])
