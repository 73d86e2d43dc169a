"""What is written lasts, whenever its writer is killed and its machine loses power.

The real code writes real files. It is killed before each thing that it asks of the system; then a
part of what was not synced is lost. What was acknowledged before must be there, whole.
"""

import json
import random
from pathlib import Path

import pytest

from elasticdl.checkpoints.exports import write_tables
from elasticdl.checkpoints.hand_over import delete_hand_overs, hand_over_folder, write_hand_over
from elasticdl.checkpoints.versions import MANIFEST, parse_manifest, whole_versions
from elasticdl.checkpoints.writing import (
    delete_checkpoints,
    put_back,
    sync,
    write_checkpoint,
    write_durably,
)
from elasticdl.packages.serving.publishing import write_program
from tests.simulation.clockwork import Died
from tests.simulation.disk import Disk

SEEDS = range(3)
ENTRY = {"version": 1, "tables": [], "files": ["rows"]}


def replica_writes(folder):
    """Write as a replica does, which syncs its files and their names."""
    write_durably(Path(folder) / "rows", "rows")
    sync(Path(folder))
    return json.dumps(ENTRY)


def is_whole(folder):
    assert parse_manifest((folder / MANIFEST).read_bytes())
    assert (folder / "rows").read_text() == "rows"


def checkpoints(folder):
    """Yield what to do, and what must be so from then on."""
    yield from checkpoints_in(folder / "new" / "recovery")


def checkpoints_in(directory):
    def write(version):
        write_checkpoint(directory, version, "m", lambda at: [replica_writes(at)], job="job")

    def newest():
        is_whole(max(whole_versions(directory), key=lambda whole: whole.version).folder)

    for version in (1, 2, 3):
        yield lambda version=version: write(version), newest
        yield lambda version=version: delete_checkpoints(directory, (version,), "job"), newest


def the_same_version_again(folder):
    directory = folder / "recovery"

    def write():
        return write_checkpoint(directory, 1, "m", lambda at: [replica_writes(at)], job="job")

    def is_there():
        put_back(directory)  # as the next master does
        is_whole(directory / "version-00000001")

    yield write, is_there
    yield write, is_there


def hand_overs(folder):
    directory = folder / "new" / "recovery"
    first, second = (hand_over_folder(directory, 0, session) for session in ("a", "b"))
    yield lambda: write_hand_over(first, replica_writes), lambda: is_whole(first)
    yield lambda: write_hand_over(second, replica_writes), lambda: is_whole(second)
    yield lambda: delete_hand_overs([first]), lambda: is_whole(second)


def tables(folder):
    directory = folder / "new" / "out"

    def write(request):
        replica_writes(json.loads(request)["directory"])
        return [json.dumps(ENTRY)]

    yield lambda: write_tables(directory, write, None, None), lambda: is_whole(directory)


def program(folder):
    def write(at):
        (at / "deep").mkdir()
        (at / "deep" / "rows").write_text("rows")

    def is_there():
        (written,) = (folder / "new").glob("program-*")
        (file,) = json.loads((written / MANIFEST).read_text())["files"]
        assert (written / "deep" / "rows").stat().st_size == file["bytes"]

    yield lambda: write_program(folder / "new", write), is_there


def a_checkpoint_after_a_kill(folder):
    """The folder for checkpoints may be there without a synced name, from who was killed."""
    (folder / "recovery").mkdir()
    yield from checkpoints_in(folder / "recovery")


def run(scenario, folder, stop, seed, is_lying=False):
    """Do it, killed before operation `stop`; return how many there were."""
    folder.mkdir()
    count = 0

    def before(words):
        nonlocal count
        if count == stop:
            raise Died(words)
        count += 1

    disk = Disk(folder / "trash", before)
    disk.is_lying = is_lying
    must_be = lambda: None  # noqa: E731
    with disk.noting():
        try:
            for act, then in scenario(folder):
                act()
                must_be = then
        except Died:
            pass
    disk.lose_power(random.Random(seed))
    must_be()
    return count


SCENARIOS = [
    checkpoints,
    a_checkpoint_after_a_kill,
    the_same_version_again,
    hand_overs,
    tables,
    program,
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_was_acknowledged_lasts(scenario, tmp_path):
    total = run(scenario, tmp_path / "all", -1, 0)
    assert total > 5
    for stop in range(total + 1):
        for seed in SEEDS:
            run(scenario, tmp_path / f"{stop}-{seed}", stop, seed)


@pytest.mark.parametrize("scenario", [checkpoints, hand_overs, tables, program])
def test_a_disk_that_does_not_sync_is_found(scenario, tmp_path):
    def all_seeds():
        for seed in range(20):
            run(scenario, tmp_path / str(seed), -1, seed, is_lying=True)

    with pytest.raises((AssertionError, OSError, ValueError)):
        all_seeds()
