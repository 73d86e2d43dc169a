import json

import numpy as np

from elasticdl.master.pictures import MOST_PARTS, map_of, picture_event, tables_event
from elasticdl.master.status import picture


def test_map_tells_how_much_of_each_part_is_done():
    assert map_of(np.array([True, False, True])) == "*0*"
    many = np.zeros(10 * MOST_PARTS, np.bool_)
    many[:15] = True
    assert map_of(many) == "*5" + "0" * (MOST_PARTS - 2)


def test_picture_has_what_is_done_and_who_is_at_what(master_kit):
    play = master_kit.play(master_kit.config(num_epochs=2), training=(("a", 120),))
    play.core.begin(0.0)
    play.register(0, 1)
    play.work_off(play.lease(0), 0)
    play.lease(1)
    told = picture_event(play.core, picture(play.core, 1.0))
    assert (told.task_map, told.doing) == ("*000", ((1, 1),))
    assert (told.tasks_done, told.tasks_doing, told.tasks_todo) == (1, 1, 6)
    assert (told.records_done, told.records_total) == (30, 240)


def test_tables_are_added_up_over_replicas():
    def replica(rows):
        counts = {"rows": rows, "bytes": 10 * rows, "pulled": 100 * rows, "found": 90 * rows}
        disk = {"rows_on_disk": 2 * rows, "disk_reads": 30 * rows}
        return {"tables": [{"name": "user", **counts, **disk}], "resident_bytes": 20 * rows}

    told = tables_event(json.dumps([replica(3), replica(4)]), {"user": [(-7, 0.25)]})
    assert (list(told.names), list(told.rows), list(told.num_bytes)) == (["user"], [7], [70])
    assert (list(told.replica_rows), list(told.replica_bytes)) == ([3, 4], [60, 80])
    assert (list(told.pulled), list(told.found)) == ([700], [630])
    assert list(told.replica_pulled) == [300, 400]
    assert (list(told.rows_on_disk), list(told.disk_reads)) == ([14], [210])
    assert told.hot_keys == [[("-7", 0.25)]]


def test_replicas_without_a_model_hold_no_tables():
    told = tables_event(json.dumps([{"tables": [], "resident_bytes": 0}]))
    assert (list(told.names), list(told.pulled), list(told.replica_pulled)) == ([], [], [0])
