"""Who has to go when strangers take too much."""

from elasticdl.packages.serving.places import FREE_BYTES, Places, Transfer


class Cut:
    def __init__(self):
        self.names = []

    def transfer(self, name, since):
        return Transfer(name, since, lambda: self.names.append(name))


def test_the_longest_transfer_goes_for_another_one_and_small_ones_always_have_room():
    cut, places = Cut(), Places(1000)
    old, new, small = (cut.transfer(name, since) for name, since in [("a", 0), ("b", 5), ("c", 5)])
    for each in (old, new, small):
        places.begin(each)
    assert places.grow(old, FREE_BYTES + 900, 5.0)
    assert places.grow(small, FREE_BYTES, 5.0)
    assert places.num_bytes == 900

    assert places.grow(new, FREE_BYTES + 800, 5.5)

    assert (cut.names, places.num_bytes) == (["a"], 800)
    assert not places.grow(small, 300, 5.9)  # nobody is older than a second
    places.end(old)
    new.cut = None
    places.end(new)
    assert (cut.names, places.num_bytes) == (["a"], 0)


def test_a_transfer_that_was_ended_for_another_takes_no_more_room():
    cut, places = Cut(), Places(1000)
    old, new = cut.transfer("a", 0.0), cut.transfer("b", 5.0)
    places.begin(old)
    places.begin(new)
    assert places.grow(old, FREE_BYTES + 900, 5.0)
    assert places.grow(new, FREE_BYTES + 800, 5.0)
    assert cut.names == ["a"]

    assert not places.grow(old, 100, 5.0)  # its task has not heard of the end yet

    for each in (old, new):
        each.cut = None
        places.end(each)
    assert places.num_bytes == 0


def test_an_answer_ends_slow_transfers_if_it_finds_no_room():
    cut, places = Cut(), Places(1000)
    answers = [cut.transfer(name, since) for name, since in [("a", 0.0), ("b", 0.9), ("c", 1.5)]]
    for answer in answers:
        answer.num_bytes = FREE_BYTES + 700

        places.begin(answer)

    assert (cut.names, places.num_bytes) == (["a"], 1400)  # nobody else is older than a second
    places.begin(cut.transfer("d", 5.0))  # it needs no room
    assert cut.names == ["a"]


def test_what_is_computed_with_stays():
    places, computed = Places(1000), Transfer("a", 0.0)
    places.begin(computed)
    assert places.grow(computed, FREE_BYTES + 900, 0.0)
    another = Cut().transfer("b", 50.0)
    places.begin(another)
    assert not places.grow(another, FREE_BYTES + 900, 50.0)
    assert places.first_to_go(51.5) == "b"
    assert places.first_to_go(51.5) is None


def test_the_place_of_who_has_asked_nothing_for_longest_goes_first():
    cut, places = Cut(), Places(1000)
    places.look("ab", (), 0.0)
    places.look("abcd", "d", 1.0)
    places.begin(cut.transfer("d", 0.0))
    assert (places.silent(0.5), places.silent(1.0)) == (["a", "b"], ["a", "b", "c"])
    places.asks("b")
    assert [places.first_to_go(2.0) for _ in range(4)] == ["a", "c", "d", None]
    assert cut.names == ["d"]
