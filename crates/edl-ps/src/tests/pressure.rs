//! Who is slower than its peer makes it wait, and nothing piles up between them.

use std::net::TcpListener;
use std::time::Instant;

use edl_wire::handshake::{self, Identity, Place};
use edl_wire::op::{TableKeys, Wanted, pull};
use edl_wire::service::PS;
use edl_wire::{Socket, timed_out};

use super::strangers::proven;
use super::*;
use crate::ErrorKind;
use crate::dedup::Planner;
use crate::replicas::{Gradients, Replicas};

const SHORT: Duration = Duration::from_millis(300);

#[test]
fn a_client_that_reads_no_answers_is_read_no_further_and_others_go_on() {
    let cluster = Cluster::start(1);
    let other = cluster.client();
    declare(&other);
    let socket = proven(&cluster);
    socket.set_timeout(SHORT).unwrap();
    let keys: Vec<u64> = (0..10_000).collect();
    let tables = vec![TableKeys {
        table: 0,
        keys: &keys,
    }];
    let wanted = Wanted {
        tables,
        create: true,
        vectors: false,
    };
    let request = pull::Request { step: None, wanted }.encode();
    let mut sent = 0;
    let stopped = loop {
        match request.write_to(sent + 1, &mut &socket) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(
            sent < 1000,
            "80 MB of requests were taken and no answer read"
        );
    };
    assert!(timed_out(&stopped), "{stopped}");
    assert_eq!(pull(&other, 0).rows.len(), 3);
}

#[test]
fn a_replica_that_does_not_read_holds_its_sender_up_until_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let deaf = std::thread::spawn(move || {
        let mut held = Vec::new();
        // The pull and push connections.
        for _ in 0..2 {
            let socket = Socket::Tcp(listener.accept().unwrap().0);
            let identity = Identity {
                place: Place { number: 0, of: 1 },
                layout: 0,
                local_name: "",
            };
            let deadline = Instant::now() + TIMEOUT;
            handshake::accept(&socket, &PS, TOKEN, identity, deadline).unwrap();
            held.push(socket);
        }
        let _ = stopped.recv();
    });
    let remote = connect(&[address], TOKEN, SHORT, false).unwrap();
    let ids: Vec<u64> = (0..1_000_000).collect();
    let site = Site {
        table: 0,
        ids: &ids,
    };
    let plan = Planner::default().plan(&[site], &[8], 1).unwrap();
    let gradients = Gradients {
        rows: &[vec![0.0; 8_000_000]],
        dense: &[],
        state: &[],
    };
    let began = Instant::now();
    let refused = remote.push(&plan, &gradients, &minibatch(1, 0), &[0]);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(began.elapsed() >= SHORT);
    drop(stop);
    deaf.join().unwrap();
}
