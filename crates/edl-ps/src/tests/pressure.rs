//! Who is slower than its peer makes it wait, and nothing piles up between them.

use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Instant;

use edl_store::PullMode;
use edl_wire::frame::{Buffer, HEADER_BYTES, Header, parse};
use edl_wire::handshake::{self, Identity, Place};
use edl_wire::op::{RowValues, Rows, TableKeys, TableRows, Wanted, pull};
use edl_wire::service::PS;
use edl_wire::{Socket, timed_out};

use super::strangers::proven;
use super::*;
use crate::ErrorKind;
use crate::dedup::Planner;
use crate::replicas::{Gradients, Pull, Replicas};

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

/// Lets a client connect to what it takes for a replica; returns its pull and push connections.
fn accept(listener: &TcpListener, place: Place) -> [Socket; 2] {
    [(); 2].map(|()| {
        let socket = Socket::Tcp(listener.accept().unwrap().0);
        let identity = Identity {
            place,
            layout: 0,
            local_name: "",
        };
        let deadline = Instant::now() + TIMEOUT;
        handshake::accept(&socket, &PS, TOKEN, identity, deadline).unwrap();
        socket.set_timeout(TIMEOUT).unwrap();
        socket
    })
}

/// Reads a pull of one table; returns what answers it.
fn answer_to_pull(mut socket: &Socket, dim: u32) -> impl FnOnce() + '_ {
    let mut head = [0; HEADER_BYTES];
    std::io::Read::read_exact(&mut socket, &mut head).unwrap();
    let header = Header::decode(head).unwrap();
    let mut payload = Buffer::default();
    payload
        .read(&mut socket, header.payload_bytes as usize)
        .unwrap();
    let keys = parse(header.num_arrays, payload.bytes()).unwrap()[0]
        .u64s()
        .unwrap();
    let rows = vec![0.5; keys.len() * dim as usize];
    move || {
        let values = RowValues::Full(&rows);
        let table = 0;
        let rows = Rows {
            tables: vec![TableRows { table, dim, values }],
            vectors: None,
        };
        let answer = pull::Response::Pulled {
            version: 1,
            store_nanos: 0,
            rows,
        };
        let sent = answer.encode().write_to(header.sequence, &mut &*socket);
        sent.unwrap();
    }
}

#[test]
fn an_answer_that_has_come_is_taken_while_another_is_waited_for() {
    const DIM: usize = 512;
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = (listeners.each_ref()).map(|at| at.local_addr().unwrap().to_string());
    let (sent, is_sent) = mpsc::channel();
    let [slow, quick] = listeners;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let [pulls, _pushes] = accept(&slow, Place { number: 0, of: 2 });
            let answer = answer_to_pull(&pulls, DIM as u32);
            is_sent.recv_timeout(TIMEOUT).unwrap();
            answer();
        });
        scope.spawn(move || {
            let [pulls, _pushes] = accept(&quick, Place { number: 1, of: 2 });
            // Much more than fits into a socket.
            answer_to_pull(&pulls, DIM as u32)();
            sent.send(()).unwrap();
        });
        let remote = connect(&addresses, TOKEN, TIMEOUT, false).unwrap();
        let ids: Vec<u64> = (0..20_000).collect();
        let site = Site {
            table: 0,
            ids: &ids,
        };
        let plan = Planner::default().plan(&[site], &[DIM], 2).unwrap();
        let mut rows = [vec![0.0; ids.len() * DIM]];
        let pull = Pull {
            plan: &plan,
            mode: PullMode::Create,
            step: None,
            rows: &mut rows,
            vectors: None,
            versions: &mut [0; 2],
        };
        remote.pull(pull).unwrap();
        assert!(rows[0].iter().all(|&value| value == 0.5));
    });
}

#[test]
fn a_replica_that_does_not_read_holds_its_sender_up_until_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let deaf = std::thread::spawn(move || {
        let _held = accept(&listener, Place { number: 0, of: 1 });
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
