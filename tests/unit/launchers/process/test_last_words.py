"""What a lost process said last."""

from elasticdl.launchers.process.logs import last_words
from elasticdl.runtime.process import BUILDS_FROM, IS_BUILT

EARLIER = "2026-01-31 12:00:00.000 worker-0 ERROR UnavailableError: of an earlier process\n"
BEGUN = f"2026-01-31 12:00:01.000 worker-0 INFO {BUILDS_FROM}a.rec [0, 64)\n"
BUILT = f"2026-01-31 12:00:02.000 worker-0 INFO {IS_BUILT}\n"


def test_records_of_a_model_that_was_being_built_are_named(tmp_path):
    log = tmp_path / "worker-0.log"
    log.write_text(EARLIER + BEGUN + "Fatal Python error: Aborted\n")
    named = "Fatal Python error: Aborted (while it built the model from records of a.rec [0, 64))"
    assert last_words(log) == named
    log.write_text(BEGUN + "2026-01-31 12:00:02.000 worker-0 ERROR ModelError: no loss\n")
    assert last_words(log) == "ModelError: no loss"
    log.write_text(BEGUN + BUILT + "Aborted\n")
    assert last_words(log) == "Aborted"
