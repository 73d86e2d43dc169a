//! Refusals, lost connections, and replicas that come back elsewhere.

use super::relay::Relay;
use super::*;
use crate::ErrorKind;

const SHORT: Duration = Duration::from_millis(200);

#[test]
fn a_stale_lease_is_refused_and_the_connection_goes_on() {
    for client in [
        Cluster::start(2).client_of_itself(),
        (
            None,
            PsClient::in_process(Arc::new(Store::new(0, 1))).unwrap(),
        ),
    ] {
        let (_cluster, client) = client;
        declare(&client);
        client.begin_task(1, 2).unwrap();
        let pulled = pull(&client, 0);

        let error = push(&client, &pulled, minibatch(1, 0)).unwrap_err();

        assert_eq!(error.kind(), ErrorKind::StaleLease, "{error}");
        assert!(error.to_string().contains("lease 1 of task 1"), "{error}");
        let newer = Minibatch {
            lease: 2,
            ..minibatch(1, 0)
        };
        assert_eq!(push(&client, &pulled, newer).unwrap(), (1, 0));
    }
}

impl Cluster {
    fn client_of_itself(self) -> (Option<Self>, PsClient) {
        let client = self.client();
        (Some(self), client)
    }
}

#[test]
fn a_refusal_of_one_replica_does_not_disturb_the_next_call() {
    let cluster = Cluster::start(2);
    let client = cluster.client();
    declare(&client);
    client.begin_task(1, 1).unwrap();
    cluster.stores[0].begin_task(1, 9).unwrap();
    let pulled = pull(&client, 0);
    for _ in 0..3 {
        let error = push(&client, &pulled, minibatch(1, 0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StaleLease, "{error}");
        assert_eq!(pull(&client, 0).rows.len(), 3);
    }
}

#[test]
fn another_model_is_refused() {
    let cluster = Cluster::start(2);
    let client = cluster.client();
    declare(&client);
    let other = model().replace("\"dim\": 8", "\"dim\": 16");
    let error = client.declare(&other, &[0.0; 37], &[0.0; 5]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ModelMismatch);
    let message = error.to_string();
    assert!(message.contains("'user' has dim 16") && message.contains(&cluster.addresses()[0]));
}

#[test]
fn arrays_that_do_not_fit_are_refused_before_they_travel() {
    let cluster = Cluster::start(1);
    let client = cluster.client();
    declare(&client);
    client.begin_task(1, 1).unwrap();
    let pulled = pull(&client, 0);
    let grads: Vec<&[f32]> = pulled.rows.iter().map(Vec::as_slice).collect();
    let refused = |grads: &[&[f32]], dense: &[f32]| {
        let pushed = client.push(&pulled.receipt, grads, dense, &[0.0; 5], &minibatch(1, 0));
        pushed.unwrap_err().to_string()
    };
    assert_eq!(
        refused(&grads[..2], &[0.0; 37]),
        "gradients of 2 sites, 3 were pulled"
    );
    assert_eq!(
        refused(&[grads[0], grads[1], &[1.0]], &[0.0; 37]),
        "the gradient of site 2 has 1 elements, expected 120"
    );
    assert_eq!(
        refused(&grads, &[0.0]),
        "the dense gradient has 1 elements, expected 37"
    );
}

#[test]
fn a_call_waits_for_a_replica_that_restarts_at_its_address() {
    let mut cluster = Cluster::start(2);
    let relay = Relay::start(&cluster.addresses()[1]);
    let client = relay.client(&cluster);
    declare(&client);
    client.begin_task(1, 1).unwrap();
    let pulled = pull(&client, 0);
    drop(cluster.servers.pop());

    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| push(&client, &pulled, minibatch(1, 0)));
        cluster.servers.push(serve(&cluster.stores[1], 0));
        relay.lead_to(&cluster.addresses()[1]);
        assert_eq!(waiting.join().unwrap().unwrap().0, 1);
    });

    let audit = client.audit().unwrap();
    assert!(
        audit.iter().all(|tasks| tasks[0].num_records == 40),
        "{audit:?}"
    );
}

#[test]
fn a_push_whose_answer_is_lost_is_applied_once() {
    let cluster = Cluster::start(2);
    let relay = Relay::start(&cluster.addresses()[1]);
    let client = relay.client(&cluster);
    let local = PsClient::in_process(Arc::new(Store::new(0, 1))).unwrap();
    for client in [&client, &local] {
        declare(client);
        client.begin_task(1, 1).unwrap();
    }
    // The answer has 64 bytes: the last cut meets a later answer.
    for (index, cut) in [0, 1, 33, 63, 20, 100].into_iter().enumerate() {
        let pulled = pull(&client, index as u64);
        relay.cut_after(cut);
        let pushed = push(&client, &pulled, minibatch(1, index as u32)).unwrap();
        assert_eq!(pushed.0, index as u64 + 1);
        let here = pull(&local, index as u64);
        assert_eq!(pulled.rows, here.rows);
        push(&local, &here, minibatch(1, index as u32)).unwrap();
    }
    let audit = client.audit().unwrap();
    assert!(
        audit.iter().all(|tasks| tasks[0].num_records == 6 * 40),
        "{audit:?}"
    );
}

#[test]
fn a_pull_cut_anywhere_is_repeated() {
    let cluster = Cluster::start(2);
    let relay = Relay::start(&cluster.addresses()[1]);
    let client = relay.client(&cluster);
    declare(&client);
    let expected = pull(&client, 3);
    for cut in [0, 63, 64, 100, 200, 500, 1000, 1500] {
        relay.cut_after(cut);
        let pulled = pull(&client, 3);
        assert_eq!(pulled.rows, expected.rows);
        assert_eq!(pulled.dense, expected.dense);
    }
}

#[test]
fn a_waiting_call_follows_a_replica_to_its_new_address() {
    let mut cluster = Cluster::start(2);
    let client = cluster.client();
    declare(&client);
    client.begin_task(1, 1).unwrap();
    let pulled = pull(&client, 0);
    drop(cluster.servers.remove(0));

    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| push(&client, &pulled, minibatch(1, 0)));
        cluster.servers.insert(0, serve(&cluster.stores[0], 0));
        client.set_address(0, cluster.servers[0].address()).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap().0, 1);
    });
    assert_eq!(client.begin_task(1, 1).unwrap(), 1);
}

#[test]
fn a_silent_replica_is_left_when_it_has_moved() {
    // A socket that accepts and says nothing stands for a machine that vanished.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let cluster = Cluster::start(1);
    let client = cluster.client();
    declare(&client);
    client
        .set_address(0, &silent.local_addr().unwrap().to_string())
        .unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.begin_task(1, 1));
        let (_held, _) = silent.accept().unwrap();
        client.set_address(0, cluster.servers[0].address()).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), 0);
    });
}

#[test]
fn a_replica_that_stays_away_is_named_with_its_address() {
    let mut cluster = Cluster::start(2);
    let mut remote = connect(&cluster.addresses(), TOKEN, TIMEOUT, true).unwrap();
    remote.options.timeout = SHORT;
    let client = PsClient::remote(remote);
    let address = cluster.addresses()[1].clone();
    drop(cluster.servers.pop());
    let error = client.stats().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let message = error.to_string();
    let expected = format!("ps replica 1 at {address} could not be reached within 0.2 s: ");
    assert!(message.starts_with(&expected), "{message}");
}

#[test]
fn nobody_at_the_address_is_unavailable() {
    // Bound, so that nobody else gets the port; not listening.
    let bound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    bound
        .bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    let address = bound.local_addr().unwrap().as_socket().unwrap().to_string();
    let error = connect(std::slice::from_ref(&address), TOKEN, SHORT, true)
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&address));
}

#[test]
fn an_address_without_a_port_is_refused_at_once() {
    let error = connect(&["localhost".to_owned()], TOKEN, TIMEOUT, true)
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error
            .to_string()
            .contains("'localhost', expected host:port"),
        "{error}"
    );
}

#[test]
fn a_wrong_token_is_refused_and_the_server_goes_on() {
    let cluster = Cluster::start(1);
    let error = connect(&cluster.addresses(), b"another", TIMEOUT, true)
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Authentication);
    assert!(error.to_string().contains(&cluster.addresses()[0]));
    declare(&cluster.client());
}

#[test]
fn a_server_without_a_token_is_not_started() {
    let started = PsServer::start(
        Arc::new(Store::new(0, 1)),
        &Door {
            service: &PS,
            host: "127.0.0.1",
            port: 0,
            token: b"",
            tls: None,
        },
        Synchrony::default(),
        None,
    );
    assert_eq!(started.err().unwrap().kind(), ErrorKind::Invalid);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let cluster = Cluster::start(1);
    let address = &cluster.addresses()[0];
    let port = address.rsplit(':').next().unwrap().parse().unwrap();
    let started = PsServer::start(
        cluster.stores[0].clone(),
        &Door {
            service: &PS,
            host: "127.0.0.1",
            port,
            token: TOKEN,
            tls: None,
        },
        Synchrony::default(),
        None,
    );
    let error = started.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Bind);
    assert!(
        error
            .to_string()
            .starts_with(&format!("cannot listen at {address}: ")),
        "{error}"
    );
}

#[test]
fn a_client_in_process_needs_the_whole_model() {
    let error = PsClient::in_process(Arc::new(Store::new(1, 2)))
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .starts_with("this store is replica 1 of 2"),
        "{error}"
    );
}

#[test]
fn a_model_that_nobody_declared_cannot_be_pulled() {
    let cluster = Cluster::start(1);
    let error = cluster
        .client()
        .pull(&[], PullMode::Create, true, None)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotDeclared);
    assert!(
        error.to_string().contains("no model has been declared"),
        "{error}"
    );
}

#[test]
fn a_push_without_its_predecessor_is_told_from_other_refusals() {
    let cluster = Cluster::start(2);
    let client = cluster.client();
    declare(&client);
    let pulled = pull(&client, 0);
    let error = push(&client, &pulled, minibatch(1, 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gap, "{error}");
    push(&client, &pulled, minibatch(1, 0)).unwrap();
}

#[test]
fn a_replica_that_is_not_there_is_waited_for_as_long_as_connecting_may_take() {
    let cluster = Cluster::start(1);
    let addresses = cluster.addresses();
    drop(cluster);
    let options = RemoteOptions {
        worker_id: 3,
        timeout: Duration::from_secs(3600),
        silence_timeout: TIMEOUT,
        connect_timeout: SHORT,
        unix_sockets: true,
        whole_job: true,
        layout: 0,
        service: &PS,
        tls: None,
    };
    let error = Remote::connect(&addresses, TOKEN, options).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("within 0.2 s"), "{error}");
}

#[test]
fn a_replica_at_the_place_of_another_is_refused_and_named() {
    let cluster = Cluster::start(2);
    let mut addresses = cluster.addresses();
    addresses.reverse();
    let error = connect(&addresses, TOKEN, SHORT, true).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let message = error.to_string();
    assert!(
        message.contains("ps replica 1 of 2 is there, expected ps replica 0 of 2"),
        "{message}"
    );
}

#[test]
fn a_replica_of_a_job_of_another_size_is_refused() {
    let cluster = Cluster::start(2);
    let error = connect(&cluster.addresses()[..1], TOKEN, SHORT, false);
    let message = error.err().unwrap().to_string();
    assert!(
        message.contains("ps replica 0 of 2 is there, expected ps replica 0 of 1"),
        "{message}"
    );
}

#[test]
fn one_replica_can_be_asked_by_itself_whichever_it_is() {
    let cluster = Cluster::start(2);
    declare(&cluster.client());
    let options = RemoteOptions {
        worker_id: 3,
        timeout: TIMEOUT,
        silence_timeout: TIMEOUT,
        connect_timeout: TIMEOUT,
        unix_sockets: true,
        whole_job: false,
        layout: 0,
        service: &PS,
        tls: None,
    };
    let alone = Remote::connect(&cluster.addresses()[1..], TOKEN, options).unwrap();
    assert_eq!(PsClient::remote(alone).audit().unwrap().len(), 1);
}

#[test]
fn replicas_that_come_back_at_each_others_ports_are_found_when_the_route_is_known() {
    let mut cluster = Cluster::start(2);
    let client = cluster.client();
    declare(&client);
    client.begin_task(1, 1).unwrap();
    let pulled = pull(&client, 0);
    let addresses = cluster.addresses();
    cluster.servers.clear();
    for (store, address) in cluster.stores.iter().zip(addresses.iter().rev()) {
        let port = address.rsplit_once(':').unwrap().1.parse().unwrap();
        cluster.servers.push(serve(store, port));
    }

    // Whoever follows the old route meets the wrong replicas, which take nothing from it.
    let mut misled = connect(&cluster.addresses(), TOKEN, TIMEOUT, true).unwrap();
    misled.options.timeout = SHORT;
    let misled = PsClient::remote(misled);
    declare(&misled);
    for (replica, address) in addresses.iter().enumerate() {
        misled.set_address(replica, address).unwrap();
    }
    let error = push(&misled, &pulled, minibatch(1, 0)).unwrap_err();
    assert!(error.to_string().contains("is there, expected"), "{error}");
    assert!(cluster.stores.iter().all(|store| store.version() == 0));

    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| push(&client, &pulled, minibatch(1, 0)));
        for (replica, address) in cluster.addresses().iter().enumerate() {
            client.set_address(replica, address).unwrap();
        }
        assert_eq!(waiting.join().unwrap().unwrap(), (1, 0));
    });
    assert_eq!(client.begin_task(1, 1).unwrap(), 1);
}
