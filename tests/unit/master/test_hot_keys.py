"""What workers look up most is added up, in bounded memory."""

from elasticdl.job import HotKeys
from elasticdl.master.process_reports import HotKeySums


def test_shares_are_of_all_ids_that_workers_counted():
    sums = HotKeySums()
    sums.add([HotKeys("user", 100, ((5, 40), (6, 10))), HotKeys("item", 10, ())])
    sums.add([HotKeys("user", 300, ((5, 60), (-7, 30)))])
    assert sums.shares() == {"user": [(5, 0.25), (-7, 0.075), (6, 0.025)], "item": []}


def test_of_many_keys_the_rarest_are_forgotten_and_of_many_tables_the_last():
    sums = HotKeySums()
    for key in range(1_000):
        sums.add([HotKeys("user", 1_000, ((key, 5), (-1, 100)))])
    assert len(sums._counts["user"]) <= 66
    assert sums.shares()["user"][0] == (-1, 0.1)
    sums.add([HotKeys(f"table {number}", 1, ()) for number in range(500)])
    assert len(sums.shares()) == 100
