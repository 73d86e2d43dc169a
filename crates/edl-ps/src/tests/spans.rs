//! What a replica records of its requests.

use super::{Cluster, declare, minibatch, pull_for, push};
use crate::{PsServer, Span, Step};

/// Exchanges some minibatches of task 4, recording the second one.
fn recorded(most: usize) -> Vec<Vec<Span>> {
    let cluster = Cluster::start(2);
    let client = cluster.client();
    declare(&client);
    client.begin_task(4, 1).unwrap();
    let exchange = |index| {
        let step = Step {
            task: 4,
            lease: 1,
            index,
        };
        let pulled = pull_for(&client, 1, Some(step));
        push(&client, &pulled, minibatch(4, index)).unwrap();
    };
    exchange(0);
    cluster
        .servers
        .iter()
        .for_each(|server| server.record(most));
    exchange(1);
    client.stats().unwrap();
    // What was answered a moment ago is recorded once its thread has ended.
    cluster.servers.iter().for_each(PsServer::stop);
    let servers = cluster.servers.iter();
    let taken: Vec<_> = servers.clone().map(PsServer::take_recorded).collect();
    assert!(
        servers
            .into_iter()
            .all(|server| server.take_recorded().is_empty())
    );
    taken
}

#[test]
fn a_recording_has_pulls_and_pushes_with_their_minibatch() {
    for spans in recorded(100) {
        let of = |op| spans.iter().find(|span| span.op == op).unwrap();
        assert_eq!(of("Pull").minibatch, Some((4, 1)));
        assert_eq!(of("Push").minibatch, Some((4, 1)));
        assert_eq!(of("Stats").minibatch, None);
        assert_eq!(spans.len(), 3);
        assert!(of("Pull").began <= of("Push").began);
    }
}

#[test]
fn no_more_is_recorded_than_was_asked_for() {
    assert_eq!(recorded(1).iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
}
