"""Which file counts the kernel's kills."""

from pathlib import Path

import pytest

from elasticdl.launchers.process.out_of_memory import OutOfMemoryKills, counter_file

GROUP = "job/worker"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def machine(tmp_path):
    """A machine without control groups of memory."""
    write(tmp_path / "proc/vmstat", "nr_free_pages 7\noom_kill 9\n")
    return tmp_path


def found(machine):
    return counter_file(machine / "proc", machine / "groups").relative_to(machine)


def test_without_control_groups_the_machine_counts(machine):
    assert found(machine) == Path("proc/vmstat")


def test_group_of_version_2_counts(machine):
    write(machine / "proc/self/cgroup", f"0::/{GROUP}\n")
    write(machine / f"groups/{GROUP}/memory.events", "low 0\noom 3\noom_kill 2\n")
    assert found(machine) == Path(f"groups/{GROUP}/memory.events")


def test_group_of_version_1_counts_also_where_a_container_sees_only_its_own(machine):
    write(machine / "proc/self/cgroup", f"4:cpu,memory:/{GROUP}\n0::/\n")
    control = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
    write(machine / "groups/memory/memory.oom_control", control)
    assert found(machine) == Path("groups/memory/memory.oom_control")
    write(machine / f"groups/memory/{GROUP}/memory.oom_control", control)
    assert found(machine) == Path(f"groups/memory/{GROUP}/memory.oom_control")


def test_group_without_a_count_leaves_it_to_the_machine(machine):
    write(machine / "proc/self/cgroup", "0::/\n")
    assert found(machine) == Path("proc/vmstat")


def test_kill_of_the_group_explains_one_exit(machine):
    events = write(machine / "memory.events", "oom 3\noom_kill 2\n")
    kills = OutOfMemoryKills(events)
    assert not kills.take_one()
    write(events, "oom 4\noom_kill 3\n")
    assert kills.take_one()
    assert not kills.take_one()
