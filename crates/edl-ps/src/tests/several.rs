//! Minibatches that are pushed together.

use super::*;
use crate::ComputedStep;

fn together(client: &PsClient, pulled: &[Pulled], first: Minibatch) -> Result<(u64, u64), PsError> {
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
    client.push_several(&steps, &first)
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
        let refused = together(&client, &pulled, minibatch(7, 0)).unwrap_err();
        assert!(
            refused.to_string().contains("a push of 2 minibatches"),
            "{refused}"
        );
    }
}
