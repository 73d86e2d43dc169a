"""The words with which users describe pods."""

import pytest

from elasticdl.packages.kubernetes.words import (
    Variable,
    Volume,
    from_secret,
    limits_of,
    next_worker_is_high,
    parse_labels,
    parse_tolerations,
    parse_variables,
    parse_volumes,
    parse_worker_priority,
    shown_variables,
    values_of,
)


def test_a_limit_is_what_is_requested_unless_given():
    request = {"cpu": "1", "memory": "1Gi"}
    assert limits_of(request, {}) == request
    assert limits_of(request, {"memory": "1025Mi"}) == {"cpu": "1", "memory": "1025Mi"}
    with pytest.raises(ValueError, match="at least what is requested, memory=1Gi, found memory=1M"):
        limits_of(request, {"memory": "1Mi"})


def test_several_volumes():
    text = (
        "host_path=/a,mount_path=/b,type=Directory;"
        "claim_name=c,mount_path=/d/,sub_path=e;claim_name=c,mount_path=/f;"
        "secret_name=s,mount_path=/tls"
    )
    assert parse_volumes(text) == (
        Volume("/b", host_path="/a", host_path_type="Directory"),
        Volume("/d", claim_name="c", sub_path="e"),
        Volume("/f", claim_name="c"),
        Volume("/tls", secret_name="s"),
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mount_path=/a", "expected one of host_path, claim_name, secret_name"),
        ("host_path=/a,claim_name=b,mount_path=/c", "expected one of host_path, claim_name, sec"),
        ("claim_name=a,mount_path=data", "expected a mount_path that begins with /"),
        ("claim_name=a", "expected a mount_path"),
        ("claim_name=a,mount_path=/a;claim_name=b,mount_path=/a/", "found /a twice"),
        ("claim_name=a,mount_path=/a,type=File", "type is that of a host_path"),
        ("host_path=/a,mount_path=/a,type=Folder", "found 'Folder'"),
        ("claim_name=a,mountpath=/a", "found 'mountpath'"),
    ],
)
def test_volumes_that_cannot_be_are_refused(text, complaint):
    with pytest.raises(ValueError, match="expected") as caught:
        parse_volumes(text)
    assert complaint in str(caught.value)


def test_a_value_of_a_variable_may_hold_commas_and_come_from_a_secret():
    assert parse_variables("A=1,B=2,3,C=secret:db/password,D=") == (
        Variable("A", "1"),
        Variable("B", "2,3"),
        Variable("C", secret="db", key="password"),
        Variable("D", ""),
    )
    assert parse_variables("") == ()


@pytest.mark.parametrize("text", ["AB1", "A=b=AB1", "1A=AB1", "A=1,A=AB1", "A=secret:AB1"])
def test_variables_that_cannot_be_are_refused_without_their_values(text):
    with pytest.raises(ValueError, match="expected") as caught:
        parse_variables(text)
    assert "AB1" not in str(caught.value)
    assert shown_variables(text) == "***"


def test_variables_are_shown_without_values_and_move_into_a_secret():
    text = "A=1,2,B=secret:db/password"
    assert shown_variables(text) == "A=***,B=secret:db/password"
    assert values_of(text) == {"A": "1,2"}
    assert from_secret(text, "job.envs") == "A=secret:job.envs/A,B=secret:db/password"


def test_tolerations_are_written_like_taints():
    assert parse_tolerations("spot=true:NoSchedule,gpu,*") == (
        {"operator": "Equal", "key": "spot", "value": "true", "effect": "NoSchedule"},
        {"operator": "Exists", "key": "gpu"},
        {"operator": "Exists"},
    )
    with pytest.raises(ValueError, match=r"effects NoSchedule, .* found 'spot:never'"):
        parse_tolerations("spot:never")


@pytest.mark.parametrize("text", ["team", "te am=a", "team=a b", f"team={'a' * 64}"])
def test_labels_that_cannot_be_are_refused(text):
    with pytest.raises(ValueError, match="expected"):
        parse_labels(text)


def test_a_priority_is_a_class_or_a_share():
    assert parse_worker_priority("high") == "high"
    assert parse_worker_priority("0.5") == 0.5
    for share in ("0", "1.5", "-0.1", "nan"):
        with pytest.raises(ValueError, match="share of the workers above 0 and up to 1"):
            parse_worker_priority(share)


@pytest.mark.parametrize(
    ("share", "num_workers", "num_high"), [(0.5, 5, 3), (0.1, 5, 1), (1.0, 4, 4), (0.25, 8, 2)]
)
def test_a_share_of_the_workers_is_high_and_at_least_one(share, num_workers, num_high):
    high = []
    for _ in range(num_workers):
        high.append(next_worker_is_high(share, sum(high), len(high)))
    assert sum(high) == num_high


def test_a_lost_worker_is_replaced_by_one_of_its_priority():
    assert next_worker_is_high(0.5, num_high=1, num_workers=3)  # a high one of 4 was lost
    assert not next_worker_is_high(0.5, num_high=2, num_workers=3)  # a low one
