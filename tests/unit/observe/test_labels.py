from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.job import Label
from elasticdl.observe.labels import LabelClock
from elasticdl.observe.usage import measure

STEPS = st.lists(
    st.tuples(st.floats(0, 1e4), st.sampled_from(Label), st.floats(0, 1e4)), max_size=30
)


@settings(deadline=None)
@given(before=st.floats(0, 1e4), steps=STEPS, last=st.floats(0, 1e4))
def test_labels_add_up_to_the_time_since_the_process_began(before, steps, last):
    now = [50.0]
    labels = LabelClock(clock=lambda: now[0], seconds_before=before)
    for seconds, label, worked in steps:
        now[0] += seconds
        labels.enter(label)
        labels.move(Label.IDLE, worked, to=Label.TRAIN)
    now[0] += last
    found = labels.seconds()
    wall = before + sum(seconds for seconds, *_ in steps) + last
    assert abs(sum(found.values()) - wall) < 1e-6
    assert min(found.values()) >= 0


def test_a_process_begins_to_count_when_the_system_started_it():
    used = measure(LabelClock())
    assert list(used.label_seconds) == ["starting"]
    assert used.label_seconds["starting"] >= used.cpu_seconds / 64 > 0
    assert used.resident_bytes > 10_000_000


def test_time_is_moved_as_far_as_there_is_some():
    now = [0.0]
    labels = LabelClock(clock=lambda: now[0], seconds_before=0.0)
    labels.enter(Label.IDLE)
    now[0] = 3.0
    labels.move(Label.IDLE, 5.0, to=Label.TRAIN)
    assert labels.seconds() == {Label.STARTING: 0.0, Label.IDLE: 0.0, Label.TRAIN: 3.0}
