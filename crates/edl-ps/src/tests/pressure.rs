//! Who is slower than its peer makes it wait, and nothing piles up between them.

use std::net::TcpListener;
use std::time::Instant;

use super::*;
use crate::ErrorKind;
use crate::auth::{self, Identity};
use crate::dedup::Planner;
use crate::frame::{FLAG_CREATE, Op, Outgoing};
use crate::replicas::{Gradients, Replicas};
use crate::socket::{Socket, timed_out};

const SHORT: Duration = Duration::from_millis(300);

#[test]
fn a_client_that_reads_no_answers_is_read_no_further_and_others_go_on() {
    let cluster = Cluster::start(1);
    let other = cluster.client();
    declare(&other);
    let address = cluster.addresses().remove(0);
    let deadline = Instant::now() + TIMEOUT;
    let socket = Socket::connect(&address, deadline).unwrap();
    auth::connect(&socket, TOKEN, 9, None, &address, deadline).unwrap();
    socket.set_timeout(SHORT).unwrap();
    let keys: Vec<u64> = (0..10_000).collect();
    let request = Outgoing::new(Op::Pull).flags(FLAG_CREATE).keys(0, &keys);
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
                replica: 0,
                num_replicas: 1,
                local_name: "",
            };
            auth::accept(&socket, TOKEN, identity, Instant::now() + TIMEOUT).unwrap();
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
