//! Pulls and pushes, when nothing fails.

use std::collections::BTreeMap;

use super::*;
use crate::Cursor;

use edl_store::{TableGrads, WireDtype};

fn rows_of(client: &PsClient, table: u32) -> BTreeMap<u64, Vec<f32>> {
    let mut cursor = Cursor::new(table);
    let mut rows = BTreeMap::new();
    while let Some(chunk) = client.scan(&mut cursor).unwrap() {
        let dim = client.dim(table).unwrap();
        for (key, row) in chunk.keys.iter().zip(chunk.rows.chunks_exact(dim)) {
            assert!(
                rows.insert(*key, row.to_vec()).is_none(),
                "key {key} came twice"
            );
        }
    }
    rows
}

fn sockets_and_in_process_agree(unix_sockets: bool) {
    let cluster = Cluster::start(2);
    let remote = cluster.client_with(TIMEOUT, unix_sockets);
    let local = PsClient::in_process(Arc::new(Store::new(0, 1))).unwrap();
    for client in [&remote, &local] {
        declare(client);
        assert_eq!(client.begin_task(7, 1).unwrap(), 0);
    }

    for step in 0..5 {
        let (there, here) = (pull(&remote, step), pull(&local, step));
        assert_eq!(there.rows, here.rows);
        assert_eq!(there.dense, here.dense);
        assert_eq!(there.state, here.state);
        assert_eq!(there.receipt.version(), step);
        for (client, pulled) in [(&remote, &there), (&local, &here)] {
            let pushed = push(client, pulled, minibatch(7, step as u32)).unwrap();
            assert_eq!(pushed, (step + 1, 0));
        }
    }
    for table in 0..2 {
        assert_eq!(rows_of(&remote, table), rows_of(&local, table));
    }
    assert_eq!(remote.audit().unwrap().len(), 2);
    for audit in remote.audit().unwrap() {
        assert_eq!(audit, local.audit().unwrap()[0]);
    }
}

#[test]
fn unix_sockets_and_in_process_agree() {
    sockets_and_in_process_agree(true);
}

#[test]
fn tcp_and_in_process_agree() {
    sockets_and_in_process_agree(false);
}

#[test]
fn a_repeated_push_is_applied_once() {
    let cluster = Cluster::start(2);
    let client = cluster.client();
    declare(&client);
    client.begin_task(1, 1).unwrap();
    let pulled = pull(&client, 0);
    assert_eq!(push(&client, &pulled, minibatch(1, 0)).unwrap().0, 1);
    let after_one = pull(&client, 0);

    assert_eq!(push(&client, &pulled, minibatch(1, 0)).unwrap().0, 1);

    let after_two = pull(&client, 0);
    assert_eq!(after_one.rows, after_two.rows);
    assert_eq!(after_one.dense, after_two.dense);
    let audit = client.audit().unwrap();
    assert!(
        audit
            .iter()
            .all(|tasks| (tasks[0].next_index, tasks[0].num_records) == (1, 40))
    );
}

#[test]
fn every_replica_counts_a_push_without_keys_for_it() {
    let cluster = Cluster::start(3);
    let client = cluster.client();
    declare(&client);
    client.begin_task(1, 1).unwrap();
    let pulled = client
        .pull(
            &[Site {
                table: 0,
                ids: &[42],
            }],
            PullMode::Create,
            true,
            None,
        )
        .unwrap();
    push(&client, &pulled, minibatch(1, 0)).unwrap();
    assert_eq!(client.begin_task(1, 2).unwrap(), 1);
}

#[test]
fn pulls_made_before_are_pushed_after_others() {
    let cluster = Cluster::start(2);
    let (remote, local) = (
        cluster.client(),
        PsClient::in_process(Arc::new(Store::new(0, 1))).unwrap(),
    );
    for client in [&remote, &local] {
        declare(client);
        client.begin_task(1, 1).unwrap();
        let in_flight: Vec<Pulled> = (0..4).map(|step| pull(client, step)).collect();
        for (index, pulled) in (0u32..).zip(&in_flight) {
            let (version, staleness) = push(client, pulled, minibatch(1, index)).unwrap();
            assert_eq!(
                (version, staleness),
                (u64::from(index) + 1, u64::from(index))
            );
        }
    }
    assert_eq!(rows_of(&remote, 0), rows_of(&local, 0));
}

#[test]
fn pull_and_push_run_at_the_same_time() {
    let cluster = Cluster::start(2);
    let client = cluster.client();
    declare(&client);
    client.begin_task(1, 1).unwrap();
    let first = pull(&client, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..200).for_each(|step| drop(pull(&client, step))));
        scope.spawn(|| {
            (0..200).for_each(|index| {
                push(&client, &first, minibatch(1, index)).unwrap();
            });
        });
    });
    assert_eq!(client.begin_task(1, 1).unwrap(), 200);
}

#[test]
fn a_read_only_pull_creates_nothing_and_gives_no_vectors_unless_asked() {
    let cluster = Cluster::start(2);
    let client = cluster.client();
    declare(&client);
    let site = Site {
        table: 1,
        ids: &[1, 2, 3],
    };
    let pulled = client
        .pull(&[site], PullMode::ReadOnly, false, None)
        .unwrap();
    assert_eq!(pulled.rows, [vec![0.0; 9]]);
    assert!(pulled.dense.is_empty() && pulled.state.is_empty());
    assert!(rows_of(&client, 1).is_empty());
}

#[test]
fn a_minibatch_without_ids_still_trains_the_dense_vector() {
    let cluster = Cluster::start(2);
    let client = cluster.client();
    declare(&client);
    client.begin_task(1, 1).unwrap();
    let pulled = client
        .pull(&[Site { table: 0, ids: &[] }], PullMode::Create, true, None)
        .unwrap();
    push(&client, &pulled, minibatch(1, 0)).unwrap();
    assert_ne!(pull(&client, 0).dense, pulled.dense);
}

#[test]
fn a_client_that_declares_nothing_learns_the_model() {
    let cluster = Cluster::start(2);
    declare(&cluster.client());
    let other = cluster.client();
    assert_eq!(other.dim(1).unwrap(), 3);
    assert_eq!(pull(&other, 0).dense.len(), 37);
}

#[test]
fn stats_come_from_every_replica() {
    let cluster = Cluster::start(2);
    let client = cluster.client();
    declare(&client);
    pull(&client, 0);
    let stats = client.stats().unwrap();
    let rows = |stats: &String| {
        let stats: serde_json::Value = serde_json::from_str(stats).unwrap();
        stats["tables"][1]["rows"].as_u64().unwrap()
    };
    let unique: std::collections::HashSet<u64> = ids(0)[2].iter().copied().collect();
    assert_eq!(stats.iter().map(rows).sum::<u64>(), unique.len() as u64);
}

#[test]
fn checkpoints_are_written_by_every_replica() {
    let cluster = Cluster::start(2);
    let client = cluster.client();
    declare(&client);
    let directory = tempfile::tempdir().unwrap();
    let entries = client
        .checkpoint(directory.path().to_str().unwrap())
        .unwrap();
    assert_eq!(entries.len(), 2);
}

/// What a value becomes on its way.
fn rounded(dtype: WireDtype, value: f32) -> f32 {
    match dtype {
        WireDtype::Float32 => value,
        WireDtype::Float16 => half::f16::from_f32_const(value).to_f32_const(),
        WireDtype::Bfloat16 => half::bf16::from_f32_const(value).to_f32_const(),
    }
}

#[test]
fn rows_and_gradients_of_16_bits_are_rounded_on_the_wire_and_nowhere_else() {
    for (name, dtype) in [
        ("float16", WireDtype::Float16),
        ("bfloat16", WireDtype::Bfloat16),
    ] {
        let cluster = Cluster::start(2);
        let client = cluster.client();
        let model = model().replacen(
            r#""dim": 8,"#,
            &format!(r#""dim": 8, "wire_dtype": "{name}","#),
            1,
        );
        client.declare(&model, &[0.0; 37], &[0.0; 5]).unwrap();
        client.begin_task(1, 1).unwrap();
        let exact = PsClient::in_process(Arc::new(Store::new(0, 1))).unwrap();
        declare(&exact);
        let (near, far) = (pull(&client, 1), pull(&exact, 1));
        for site in 0..2 {
            let expected: Vec<f32> = far.rows[site].iter().map(|&v| rounded(dtype, v)).collect();
            assert_ne!(expected, far.rows[site]);
            assert_eq!(near.rows[site], expected);
        }
        assert_eq!(near.rows[2], far.rows[2]);

        let site = Site {
            table: 0,
            ids: &[7],
        };
        let pulled = client.pull(&[site], PullMode::Create, false, None).unwrap();
        let grads: Vec<f32> = (1..9).map(|i| i as f32 / 7.0).collect();
        let dense = [0.0; 37];
        client
            .push(
                &pulled.receipt,
                &[&grads],
                &dense,
                &[0.0; 5],
                &minibatch(1, 0),
            )
            .unwrap();
        let single = Store::new(0, 1);
        single
            .declare(
                edl_store::ModelSpec::from_json(&model).unwrap(),
                &[0.0; 37],
                &[0.0; 5],
            )
            .unwrap();
        let grads: Vec<f32> = grads.iter().map(|&v| rounded(dtype, v)).collect();
        let tables = [TableGrads {
            table: 0,
            keys: &[7],
            grads: &grads,
        }];
        single
            .apply(&edl_store::Push {
                task: 1,
                lease: 1,
                index: 0,
                num_records: 1,
                learning_rate: 0.1,
                pulled_version: 0,
                tables: &tables,
                dense: &dense,
                state: &[0.0; 5],
            })
            .unwrap();
        let mut expected = [0.0; 8];
        single
            .pull_rows(0, &[7], PullMode::ReadOnly, &mut expected)
            .unwrap();
        // A scan is not rounded: it is what the store has.
        assert_eq!(rows_of(&client, 0)[&7], expected);
    }
}
