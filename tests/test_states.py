"""States: a value that shares rows with other values, in a file that holds no more than it must."""

from pathlib import Path

import pytest
import torch

from pflpipe.errors import DataError
from pflpipe.simulation.processes import Processes
from pflpipe.simulation.states import States

INITIAL = {
    "mask": torch.tensor([True, False, False]),
    "weight": torch.arange(6.0).view(2, 3),
    "count": torch.tensor(2.5, dtype=torch.float64),
    "step": torch.tensor([7]),
}
ROW = 3 + 24 + 8 + 8


def of(number: int, clients: int = 1) -> dict[str, torch.Tensor]:
    """States of some clients that differ from those of any other number."""
    return {
        "mask": torch.arange(3 * clients).view(clients, 3) % 2 == number % 2,
        "weight": torch.arange(6.0 * clients).view(clients, 2, 3) + number,
        "count": torch.full((clients,), number, dtype=torch.float64),
        "step": torch.full((clients, 1), number),
    }


def assert_same(found, expected) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


def test_every_client_begins_with_the_same_state_and_keeps_what_it_was_given():
    states = States(INITIAL, 5)
    twice = {name: torch.stack([value, value]) for name, value in INITIAL.items()}
    assert_same(states.of([4, 0]), twice)
    new = states.replaced([3, 1], of(9, 2))
    assert_same(new.of([3, 1]), of(9, 2))
    assert_same(new.of([1]), {name: value[1:] for name, value in of(9, 2).items()})
    assert_same(new.of([2]), {name: value[None] for name, value in INITIAL.items()})
    shapes = {"mask": (5, 3), "weight": (5, 2, 3), "count": (5,), "step": (5, 1)}
    assert {name: value.shape for name, value in new.items()} == shapes
    assert torch.equal(new["count"], torch.tensor([2.5, 9, 2.5, 9, 2.5], dtype=torch.float64))


def test_a_value_stays_what_it_was_when_a_newer_one_differs():
    states = [States(INITIAL, 2)]
    for number in range(4):
        states.append(states[-1].replaced([number % 2], of(number)))
    steps = [value["step"].flatten().tolist() for value in states]
    assert steps == [[7, 7], [0, 7], [0, 1], [2, 1], [2, 3]]


def test_room_is_taken_by_clients_that_trained_and_used_again(tmp_path):
    path = tmp_path / "states"
    states = States(INITIAL, 10**6, path)
    states = states.replaced([5], of(0))
    for number in range(20):
        states = states.replaced([5, 17], of(number, 2))
    assert path.stat().st_size <= 4 * ROW
    assert_same(states.of([5, 17]), of(19, 2))


def test_without_states_there_is_no_file(tmp_path):
    states = States({}, 3, tmp_path / "states").replaced([0, 2], {})
    assert states.of([0]) == {}
    assert dict(states) == {}
    assert states.notes()["slots"].tolist() == [-1] * 3
    assert not (tmp_path / "states").exists()


def test_what_was_noted_is_found_again_whatever_was_written_after(tmp_path):
    path = tmp_path / "states"
    states = States(INITIAL, 4, path).replaced([0, 1], of(1, 2))
    notes, noted = states.notes(), states
    for number in range(2, 9):
        states = states.replaced([1, 2], of(number, 2))
    again = States.restored(notes, path)
    assert_same(again.of([0, 1]), of(1, 2))
    assert_same(again.of([2]), {name: value[None] for name, value in INITIAL.items()})
    assert_same(dict(noted), dict(again))
    later = again.replaced([3], of(3))
    assert_same(later.of([0, 1]), of(1, 2))
    assert_same(later.of([3]), of(3))


def test_a_saved_file_depends_on_the_states_and_not_on_how_they_came_about(tmp_path):
    first, second = (States(INITIAL, 4, tmp_path / name) for name in "ab")
    first = first.replaced([1, 3], of(5, 2))
    for number in range(3):
        second = second.replaced([3, 1], of(number, 2))
    swapped = {name: value.flip(0) for name, value in of(5, 2).items()}
    second = second.replaced([3, 1], swapped)
    one, other = tmp_path / "a.bin", tmp_path / "b.bin"
    notes, others = first.save(one), second.save(other)
    assert notes["trained"].tolist() == others["trained"].tolist() == [1, 3]
    assert one.read_bytes() == other.read_bytes()
    assert one.stat().st_size == 2 * ROW
    one.chmod(0o400)
    assert_same(dict(States.load(notes, one)), dict(first))


@pytest.mark.parametrize("content", [None, b"", b"x" * (ROW - 1)])
def test_a_file_that_lacks_rows_is_refused_before_anything_is_read(tmp_path, content):
    path = tmp_path / "states"
    notes = States(INITIAL, 2, path).replaced([0], of(0)).notes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    got = f"got '{len(content or b'')} bytes'; expected at least {ROW}"
    with pytest.raises(DataError, match=f"states of the clients; {got}"):
        States.restored(notes, path)


def test_processes_that_share_states_need_a_file_that_all_can_see():
    with pytest.raises(ValueError, match="several processes share the states"):
        States(INITIAL, 2, processes=Processes(1, 2))
    assert dict(States({}, 2, processes=Processes(1, 2))) == {}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
def test_a_full_disk_is_an_error_that_says_how_much_room_is_needed():
    words = r"/dev/full: states of the clients, 1 kB each; got .*No space left"
    with pytest.raises(DataError, match=words):
        States(INITIAL, 2, Path("/dev/full")).replaced([0, 1, 1], of(0, 3))
