//! Minibatches that are pushed together.

use super::*;
use crate::ComputedStep;

fn together(client: &PsClient, pulled: &[Pulled], first: Minibatch) -> Result<(u64, u64), PsError> {
    with_steps(pulled, first, |steps| client.push_several(steps, &first))
}

fn each(
    client: &PsClient,
    pulled: &[Pulled],
    first: Minibatch,
) -> Result<Vec<(u64, u64)>, PsError> {
    let numbered = (first.index..).zip(pulled);
    let minibatches: Vec<_> = numbered
        .map(|(index, _)| Minibatch { index, ..first })
        .collect();
    with_steps(pulled, first, |steps| client.push_each(steps, &minibatches))
}

fn with_steps<T>(
    pulled: &[Pulled],
    first: Minibatch,
    push: impl FnOnce(&[ComputedStep<'_>]) -> T,
) -> T {
    let numbered = (first.index..).zip(pulled);
    let grads: Vec<_> = numbered
        .map(|(index, pulled)| gradients_of(pulled, Minibatch { index, ..first }))
        .collect();
    let grads: Vec<Vec<&[f32]>> = (grads.iter())
        .map(|grads| grads.iter().map(Vec::as_slice).collect())
        .collect();
    let (dense, state) = ([0.5; 37], [0.25; 5]);
    let steps: Vec<_> = pulled
        .iter()
        .zip(&grads)
        .map(|(pulled, rows)| ComputedStep {
            receipt: &pulled.receipt,
            gradients: crate::StepGradients {
                rows,
                dense: &dense,
                state: &state,
            },
            num_records: 40,
        })
        .collect();
    push(&steps)
}

/// Each gradient is an update of its own, as if it had come in a frame of its own.
#[test]
fn gradients_of_one_frame_are_updates_one_after_the_other() {
    let cluster = Cluster::start(2);
    let (several, single) = (
        cluster.client(),
        PsClient::in_process(Arc::new(Store::new(0, 1))).unwrap(),
    );
    for client in [&several, &single] {
        declare(client);
        client.begin_task(7, 1).unwrap();
    }
    let pulls =
        |client: &PsClient| -> Vec<Pulled> { (0..3).map(|step| pull(client, step)).collect() };
    let (there, here) = (pulls(&several), pulls(&single));
    let expected: Vec<_> = (0..)
        .zip(&here)
        .map(|(index, pulled)| push(&single, pulled, minibatch(7, index)).unwrap())
        .collect();

    assert_eq!(each(&several, &there, minibatch(7, 0)).unwrap(), expected);
    assert_eq!(expected, [(1, 0), (2, 1), (3, 2)]);
    for step in 0..3 {
        assert_eq!(pull(&several, step).rows, pull(&single, step).rows);
    }
    let again = each(&several, &there, minibatch(7, 0)).unwrap();
    assert_eq!(again, [(3, 0); 3], "they come again, and nothing changes");
    for audit in several.audit().unwrap() {
        assert_eq!(audit, single.audit().unwrap()[0], "watermarks and records");
    }
    let (pulled, late) = ([pull(&several, 3)], minibatch(7, 4));
    let refused = each(&several, &pulled, late).unwrap_err();
    assert_eq!(refused.kind(), crate::ErrorKind::Gap, "{refused}");
}

/// What each minibatch is given is what its own pull would have brought.
#[test]
fn one_pull_for_several_minibatches_is_split_into_theirs() {
    let cluster = Cluster::start(3);
    let client = cluster.client();
    declare(&client);
    client.begin_task(7, 1).unwrap();
    push(&client, &pull(&client, 1), minibatch(7, 0)).unwrap();
    let ids = [ids(0), ids(1)];
    let sites: Vec<Site<'_>> = (ids.iter())
        .flat_map(|ids| ids.iter().zip([0, 0, 1]))
        .map(|(ids, table)| Site { table, ids })
        .collect();
    let mut whole = client.pull(&sites, PullMode::Create, true, None).unwrap();
    let parts = whole.split(2);
    let alone = [pull(&client, 0), pull(&client, 1)];
    assert_eq!(parts.len(), 2);
    let other = cluster.client();
    for (((rows, receipt), alone), index) in parts.into_iter().zip(alone).zip(1..) {
        assert_eq!(rows, alone.rows);
        let of_alone = alone.receipt;
        for (part, whole) in receipt.plan.tables.iter().zip(&of_alone.plan.tables) {
            let sorted = |table: &crate::dedup::TablePlan, replica| {
                let mut keys = table.keys()[table.range(replica)].to_vec();
                keys.sort_unstable();
                keys
            };
            for replica in 0..3 {
                assert_eq!(sorted(part, replica), sorted(whole, replica));
            }
        }
        let (dense, state) = (alone.dense, alone.state);
        let part = Pulled {
            rows,
            dense,
            state,
            receipt,
        };
        push(&client, &part, minibatch(7, index)).unwrap();
    }
    assert_eq!(other.audit().unwrap()[2][0].next_index, 3);
}

/// SGD adds gradients up, so one update of their sum is as good as an update of each.
#[test]
fn the_sum_of_several_gradients_is_one_update_of_all_of_them() {
    let cluster = Cluster::start(2);
    let (several, single) = (
        cluster.client(),
        PsClient::in_process(Arc::new(Store::new(0, 1))),
    );
    let single = single.unwrap();
    for client in [&several, &single] {
        declare(client);
        client.begin_task(7, 1).unwrap();
    }
    let pulls =
        |client: &PsClient| -> Vec<Pulled> { (0..3).map(|step| pull(client, step)).collect() };
    let (there, here) = (pulls(&several), pulls(&single));

    assert_eq!(together(&several, &there, minibatch(7, 0)).unwrap(), (1, 0));
    for (index, pulled) in (0..).zip(&here) {
        push(&single, pulled, minibatch(7, index)).unwrap();
    }

    for step in 0..3 {
        let (there, here) = (pull(&several, step), pull(&single, step));
        for (a, b) in there.rows[2].iter().zip(&here.rows[2]) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
    }
    for audit in several.audit().unwrap() {
        assert_eq!(audit, single.audit().unwrap()[0], "watermarks and records");
    }
    assert_eq!(
        together(&several, &there, minibatch(7, 0)).unwrap().0,
        1,
        "they come again"
    );
    assert_eq!(
        push(&several, &pull(&several, 3), minibatch(7, 3))
            .unwrap()
            .0,
        2
    );
}

#[test]
fn replicas_that_make_rounds_or_hold_a_bound_take_one_at_a_time() {
    let rounds = Synchrony::Synchronous {
        grads_to_wait: 1,
        version_tolerance: 0,
    };
    for synchrony in [Synchrony::Bounded { max_staleness: 9 }, rounds] {
        let cluster = Cluster::with(1, synchrony);
        let client = cluster.client();
        declare(&client);
        client.begin_task(7, 1).unwrap();
        let pulled = [pull(&client, 0), pull(&client, 1)];
        let refused = each(&client, &pulled, minibatch(7, 0)).unwrap_err();
        assert!(
            refused.to_string().contains("of several minibatches"),
            "{refused}"
        );
        let refused = together(&client, &pulled, minibatch(7, 0)).unwrap_err();
        assert!(
            refused.to_string().contains("a push of 2 minibatches"),
            "{refused}"
        );
    }
}
