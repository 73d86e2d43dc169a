"""Streams: topics of Kafka, event time, and training data that is read once."""

from elasticdl.registry import Package

_HERE = "elasticdl.packages.streams"
_EVENTS = f"{_HERE}.events"

PACKAGE = Package(
    sections={"streams": f"{_HERE}.settings:StreamsSection"},
    sources={"Kafka": f"{_HERE}.kinds:KAFKA"},
    read_once={"capture": f"{_HERE}.kinds:CAPTURED"},
    tables={"stream": f"{_HERE}.stream_table:table_of"},
    readings={"messages": f"{_HERE}.readings:readings_of"},
    features={"stream": f"{_HERE}.sources:features_of"},
    kinds={
        "unreadable": f"{_EVENTS}:Unreadable",
        "messages late": f"{_EVENTS}:MessagesLate",
        "messages gone": f"{_EVENTS}:MessagesGone",
        "window": f"{_EVENTS}:WindowScored",
    },
    views={"stream": f"{_HERE}.status_view:VIEW"},
    checks={"stream": f"{_HERE}.checks:check"},
)
