"""The fields of a flight's record: facts that are known before the flight departs.

The converter (`prepare.py`) writes these fields, and the model reads them.
"""

FIELDS = {
    "date": 366,  # day of the year, from 0
    "weekday": 7,  # Monday is 0
    "hour": 24,  # of the scheduled departure
    "sched_dep_time": 2400,  # as on the timetable: 17:35 is 1735
    "sched_arr_time": 2400,
    "carrier": 16,  # index of the name among all names in alphabetical order, here and below
    "flight": 10_000,  # the airline's flight number
    "tailnum": 4_100,  # the airplane
    "origin": 3,
    "dest": 105,
}
"""Name of each field -> how many values it can have; values are 0, 1, 2, ..."""

LABEL = "late"
"""Name of the label: 1 where the flight arrived more than 15 minutes late, otherwise 0."""
