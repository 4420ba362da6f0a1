"""People x items: questionnaires and ratings, read as one example for each answer.

An example is the index of an item, float32 ``[1]``, and its user the person. Readers return arrays
as those of downloads.py do. The network ``embedding`` learns one vector for each item.
"""

from pathlib import Path

import numpy as np

LEVELS = 6
GRADES = 5
JOKES = 100
NOT_RATED = 99


def read_spi(path: Path, agrees: bool) -> dict[str, np.ndarray]:
    """Return the answers of the SAPA Personality Inventory (Condon, "The SAPA Personality
    Inventory", 2018): 4,000 people answered 135 statements about themselves, from 1 (very
    inaccurate) to 6 (very accurate).

    Args:
        path: psychTools' spi.rda.
        agrees: whether a label is 1 for the answers 4 to 6 and else 0, or the answer less 1.

    Raises:
        ValueError: an answer is missing or not 1 to 6.
    """
    import rdata

    table = rdata.read_rda(path)["spi"]
    statements = [name for name in table.columns if str(name).startswith("q_")]
    answers = table[statements].to_numpy().astype(float)  # [people, statements]
    if not np.isin(answers, np.arange(1, LEVELS + 1)).all():
        raise ValueError(f"answers other than 1 to {LEVELS}")
    labels = answers > LEVELS / 2 if agrees else answers - 1
    return _rows(labels, np.ones(answers.shape, dtype=bool))


def read_epi(path: Path) -> dict[str, np.ndarray]:
    """Return the answers to the Eysenck Personality Inventory (psychTools; Revelle et al., "The
    Interactive Effect of Personality, Time of Day, and Caffeine", 1980): 3,570 people answered up
    to 57 questions with yes (1) or no (2). A label is whether the answer is yes. 54 people without
    any answer are left out.

    Args:
        path: psychTools' epi.rda.

    Raises:
        ValueError: an answer is neither missing nor 1 or 2.
    """
    import rdata

    table = rdata.read_rda(path)["epi"]
    answers = table.to_numpy(dtype=float, na_value=np.nan)  # [people, questions]
    answered = ~np.isnan(answers)
    if not np.isin(answers[answered], (1, 2)).all():
        raise ValueError("answers other than 1 and 2")
    return _rows(answers == 1, answered)


def read_insteval(path: Path) -> dict[str, np.ndarray]:
    """Return the ratings of InstEval (the R package lme4): 2,972 students of ETH Zurich rated 1 to
    92 of 1,128 lecturers, from 1 (poor) to 5 (very good). A label is whether the rating is 4 or 5.

    Args:
        path: lme4's InstEval.rda; s is the student, d the lecturer, y the rating.

    Raises:
        ValueError: the table is not of this form.
    """
    import rdata

    table = rdata.read_rda(path, default_encoding="ascii")["InstEval"]
    students, lecturers = (table[name].cat.codes.to_numpy() for name in "sd")
    given = table["y"].to_numpy(dtype=float, na_value=np.nan)
    if not np.isin(given, np.arange(1, GRADES + 1)).all():
        raise ValueError(f"ratings other than 1 to {GRADES}")
    ratings = np.zeros([len(table[name].cat.categories) for name in "sd"])
    ratings[students, lecturers] = given
    rated = ratings > 0
    if min(students.min(), lecturers.min()) < 0 or rated.sum() != len(table):
        raise ValueError("ratings without student or lecturer, or two of one by the other")
    return _rows(ratings > 3, rated)


def read_jester(path: Path) -> dict[str, np.ndarray]:
    """Return the ratings of Jester 1 (Goldberg, Roeder, Gupta, Perkins, "Eigentaste: A Constant
    Time Collaborative Filtering Algorithm", 2001): 24,983 people rated 36 to 100 jokes, from -10 to
    10. A label is whether the person likes the joke, a rating above 0.

    Args:
        path: the sheet; a row is a person: the number of ratings, then one for each joke.

    Raises:
        ValueError: the sheet is not of this form.
    """
    import xlrd

    sheet = xlrd.open_workbook(path).sheet_by_index(0)
    table = np.array([sheet.row_values(row) for row in range(sheet.nrows)], dtype=float)
    if table.ndim != 2 or table.shape[1] != 1 + JOKES:
        raise ValueError(f"rows of other than {1 + JOKES} numbers")
    ratings = table[:, 1:]  # [people, jokes]
    rated = ratings != NOT_RATED
    if not ((np.abs(ratings) <= 10) | ~rated).all():
        raise ValueError("ratings other than -10 to 10")
    if not np.array_equal(rated.sum(1), table[:, 0]):
        raise ValueError("people with another number of ratings than their first column says")
    return _rows(ratings > 0, rated)


def _rows(labels: np.ndarray, answered: np.ndarray) -> dict[str, np.ndarray]:
    """Return one row for each answer, of ``[people, items]``."""
    people, items = np.nonzero(answered)
    examples, given = items.astype(np.float32)[:, None], labels[answered].astype(np.int64)
    return {"train_images": examples, "train_labels": given, "train_users": people}
