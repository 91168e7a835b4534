from itertools import chain

from merganser.learning.batches import FIXED, Batches

BATCHES = Batches(seed=0, task="dtd", split="validation", count=10, size=4)


def rows(batches: Batches, start: int, stop: int) -> list[int]:
    return list(chain.from_iterable(batches.rows(number) for number in range(start, stop)))


def test_every_epoch_has_each_example_once_in_an_order_of_its_own() -> None:
    first, second = rows(BATCHES, 0, 5)[:10], rows(BATCHES, 0, 5)[10:]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_all_batches_have_one_size_whatever_the_number_of_examples() -> None:
    few = Batches(0, "dtd", "validation", 3, 8)
    assert {len(few.rows(number)) for number in range(4)} == {8}
    assert [list(batch) for batch in few.fixed()] == [list(next(few.fixed()))]
    assert sorted(next(few.fixed())) == [0, 1, 2]


def test_a_batch_depends_on_seed_task_and_split_and_on_no_batch_before_it() -> None:
    assert BATCHES.rows(7) == Batches(0, "dtd", "validation", 10, 4).rows(7)
    others = [Batches(1, "dtd", "validation", 10, 4), Batches(0, "cars", "validation", 10, 4)]
    others.append(Batches(0, "dtd", "train", 10, 4))
    assert all(rows(other, 0, 5) != rows(BATCHES, 0, 5) for other in others)


def test_the_fixed_examples_are_some_batches_of_different_ones() -> None:
    many = Batches(0, "dtd", "validation", 1000, 16)
    found = list(many.fixed())
    assert [len(batch) for batch in found] == [16] * FIXED
    assert len(set(chain.from_iterable(found))) == 16 * FIXED
