//! Rows that a model file sets: every worker has them, and every replica gets its own once.

use std::thread;

use super::*;
use crate::{ErrorKind, GivenRows};

const NUM_ROWS: u64 = 1000;

/// The model of the other tests, with a table of which all rows are given.
fn given_model() -> String {
    let table = r#"{"name": "user", "given_rows": true, "input_dim": 1000,"#;
    model().replacen(r#"{"name": "user","#, table, 1)
}

fn rows() -> Vec<f32> {
    (0..NUM_ROWS * 8).map(|i| i as f32).collect()
}

fn declare_given(client: &PsClient) -> Result<(), PsError> {
    let given = [GivenRows {
        table: 0,
        rows: &rows(),
    }];
    client.declare_with(&given_model(), &[0.0; 37], &[0.0; 5], &given)
}

fn all_rows(client: &PsClient) -> Vec<f32> {
    let ids: Vec<u64> = (0..NUM_ROWS).collect();
    let site = Site {
        table: 0,
        ids: &ids,
    };
    let pulled = client.pull(&[site], PullMode::ReadOnly, false, None);
    pulled.unwrap().rows[0].to_vec()
}

#[test]
fn workers_that_begin_together_give_each_replica_its_rows_once() {
    let cluster = Cluster::start(3);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let client = cluster.client();
                declare_given(&client).unwrap();
                assert_eq!(all_rows(&client), rows());
            });
        }
    });
    let counts = cluster.stores.iter().map(|s| s.stats().tables[0].rows);
    assert_eq!(counts.sum::<u64>(), NUM_ROWS);
}

#[test]
fn a_replica_that_came_back_empty_gets_them_again_and_what_is_trained_stays() {
    let mut cluster = Cluster::start(2);
    let client = cluster.client();
    declare_given(&client).unwrap();
    client.begin_task(1, 1).unwrap();
    push(&client, &pull(&client, 0), minibatch(1, 0)).unwrap();
    let trained = all_rows(&client);
    assert_ne!(trained, rows());
    declare_given(&client).unwrap();
    assert_eq!(all_rows(&client), trained);
    cluster.replace(1, Store::new(1, 2), Synchrony::Asynchronous);
    client.set_address(1, &cluster.addresses()[1]).unwrap();
    let ids = [1];
    let site = Site {
        table: 0,
        ids: &ids,
    };
    assert_eq!(
        client
            .pull(&[site], PullMode::ReadOnly, true, None)
            .unwrap_err()
            .kind(),
        ErrorKind::NotDeclared
    );
    declare_given(&client).unwrap();
    for (key, row) in all_rows(&client).chunks(8).enumerate() {
        let on_one = edl_store::replica_of(key as u64, 2) == 1;
        let expected = if on_one { rows() } else { trained.clone() };
        assert_eq!(row, &expected[8 * key..][..8]);
    }
}

#[test]
fn a_model_is_not_declared_without_its_rows_nor_with_others() {
    let cluster = Cluster::start(2);
    let client = cluster.client();
    let refused = client.declare(&given_model(), &[0.0; 37], &[0.0; 5]);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    let store = Store::new(0, 1);
    let spec = edl_store::ModelSpec::from_json(&given_model()).unwrap();
    store.give("user", 8, &[1, 2], &[0.0; 16]).unwrap();
    store.give("user", 8, &[1, 2], &[0.0; 16]).unwrap();
    let refused = store.declare(spec, &[0.0; 37], &[0.0; 5]).unwrap_err();
    assert!(refused.to_string().contains("has 2 of 1000"), "{refused}");
}
