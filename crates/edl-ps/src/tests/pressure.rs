//! Who is slower than its peer makes it wait, and nothing piles up between them.

use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Instant;

use edl_store::PullMode;
use edl_wire::frame::{Buffer, HEADER_BYTES, Header, parse};
use edl_wire::handshake::{self, Identity, Place};
use edl_wire::op::push::Outcome;
use edl_wire::op::{
    Op, Response as _, RowValues, Rows, TableKeys, TableRows, Wanted, pull, push, push_pull,
};
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

const WIDE: usize = 512;

/// Reads a frame of one table, with a push, a pull, or both; returns what answers it.
fn answer(mut socket: &Socket) -> impl FnOnce() + '_ {
    let mut head = [0; HEADER_BYTES];
    std::io::Read::read_exact(&mut socket, &mut head).unwrap();
    let header = Header::decode(head).unwrap();
    let mut payload = Buffer::default();
    let bytes = header.payload_bytes as usize;
    payload.read(&mut socket, bytes).unwrap();
    move || {
        let arrays = parse(header.num_arrays, payload.bytes()).unwrap();
        let rows = vec![0.5; arrays[0].u64s().unwrap().len() * WIDE];
        let values = RowValues::Full(&rows);
        let (table, dim) = (0, WIDE as u32);
        let rows = Rows {
            tables: vec![TableRows { table, dim, values }],
            vectors: None,
        };
        let (version, staleness, now, store_nanos) = (1, 0, true, 0);
        let outcome = Outcome::Applied {
            version,
            staleness,
            now,
        };
        let pulled = Some((version, rows.clone()));
        let pull = pull::Response::Pulled {
            version,
            store_nanos,
            rows,
        };
        let push = push::Response {
            outcome: outcome.clone(),
            store_nanos,
        };
        let both = push_pull::Response { outcome, pulled };
        let frame = match header.op {
            Op::Pull => pull.encode(),
            Op::Push => push.encode(),
            _ => both.encode(),
        };
        frame.write_to(header.sequence, &mut &*socket).unwrap();
    }
}

/// Has a client ask two replicas with frames, and for answers, that are larger than sockets are.
/// Replica 0 reads nothing until all of the question to replica 1 has come and is answered.
fn ask_a_deaf_one_and_another((pushes, pulls): (bool, bool)) {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = (listeners.each_ref()).map(|at| at.local_addr().unwrap().to_string());
    let [deaf, other] = listeners;
    let lane = usize::from(pushes);
    let (done, is_done) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let lanes = accept(&deaf, Place { number: 0, of: 2 });
            is_done.recv_timeout(TIMEOUT).unwrap();
            answer(&lanes[lane])();
        });
        scope.spawn(move || {
            let lanes = accept(&other, Place { number: 1, of: 2 });
            answer(&lanes[lane])();
            done.send(()).unwrap();
        });
        let remote = connect(&addresses, TOKEN, TIMEOUT, false).unwrap();
        let ids: Vec<u64> = (0..20_000).collect();
        let site = Site {
            table: 0,
            ids: &ids,
        };
        let mut plan = Planner::default().plan(&[site], &[WIDE], 2).unwrap();
        plan.tables[0].trainable = true;
        let gradients = Gradients {
            rows: &[vec![0.25; ids.len() * WIDE]],
            dense: &[],
            state: &[],
        };
        let mut rows = [vec![0.0; ids.len() * WIDE]];
        let next = Pull {
            plan: &plan,
            mode: PullMode::Create,
            step: None,
            rows: &mut rows,
            vectors: None,
            versions: &mut [0; 2],
        };
        let minibatch = minibatch(1, 0);
        let pushed = match (pushes, pulls) {
            (true, true) => (remote.push_pull(&plan, &gradients, &minibatch, &[0; 2], next))
                .map(|(pushed, _)| pushed),
            (true, false) => remote.push(&plan, &gradients, &minibatch, &[0; 2]),
            (false, _) => remote.pull(next).map(|()| (1, 0)),
        };
        assert_eq!(pushed.unwrap(), (1, 0));
        assert!(
            rows[0]
                .iter()
                .all(|&value| value == if pulls { 0.5 } else { 0.0 })
        );
    });
}

#[test]
fn a_replica_that_neither_reads_nor_answers_holds_up_no_other() {
    for pushes_and_pulls in [(false, true), (true, false), (true, true)] {
        ask_a_deaf_one_and_another(pushes_and_pulls);
    }
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
