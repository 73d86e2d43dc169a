"""When faults happen."""

import random

import pytest

from elasticdl.master.phases import Phase
from scripts.chaos.faults import Fault, flags_of, is_due, parse, plan


def test_roles_joined_by_plus_are_killed_at_once():
    assert parse("ps+master@exporting", random.Random()).roles == ["ps", "master"]


def test_a_word_before_a_role_says_whom_it_strikes():
    assert parse("ps-again", random.Random()).roles == ["ps"]
    assert parse("add", random.Random()).roles == []


@pytest.mark.parametrize("kind", ["wroker", "ps+wroker", "ps@lunch", "", "ps+"])
def test_unknown_faults_are_refused(kind):
    with pytest.raises(ValueError, match="expected roles to kill"):
        parse(kind, random.Random())


def test_faults_are_planned_in_the_order_of_phases_and_shares():
    faults = plan(["ps@auditing", "worker", "ps", "master@pending"], random.Random(0))
    assert [fault.kind for fault in faults[::3]] == ["master@pending", "ps@auditing"]
    assert faults[1].at < faults[2].at


def test_a_fault_of_a_phase_waits_for_it():
    fault = Fault("ps@exporting", "ps", phase=Phase.EXPORTING)
    assert not is_due(fault, 1.0, Phase.EVALUATING)
    assert is_due(fault, 1.0, Phase.EXPORTING)
    assert is_due(fault, 1.0, Phase.CHECKPOINTING)


def test_a_fault_of_a_share_waits_for_the_records():
    fault = Fault("ps", "ps", at=0.5)
    assert not is_due(fault, 0.49, Phase.TRAINING)
    assert is_due(fault, 0.5, Phase.TRAINING)


def test_a_stopped_process_counts_as_lost_soon():
    assert flags_of([parse("ps", random.Random())]) == {}
    assert flags_of([parse("ps-stop", random.Random())]) == {"heartbeat_timeout_seconds": 3.0}
