//! Servers and their lanes, with clients that say what no client of the job says.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::mpsc::{self, Receiver, Sender};

use super::lanes::{Served, Turn};
use super::scratch::Scratch;
use super::*;
use crate::frame::{HEADER_BYTES, Header, Outgoing};
use crate::handshake::Caller;
use crate::op::Op;
use crate::service::PS;
use crate::tls::tests::Authority;

const IN_CHILD: &str = "ELASTICDL_TEST_HANDLER_PANICS";
const TOKEN: &[u8] = b"a token";
const PLACE: Place = Place { number: 0, of: 1 };
const LIMIT: Duration = Duration::from_secs(30);

fn start(handler: impl Handler, tls: Option<&Arc<Credentials>>) -> Server {
    let listening = Listening {
        service: &PS,
        place: PLACE,
        host: "127.0.0.1",
        port: 0,
        token: TOKEN,
        tls,
    };
    Server::start(&listening, handler).unwrap()
}

fn connect(server: &Server, tls: Option<&Arc<Credentials>>) -> Socket {
    let deadline = Instant::now() + LIMIT;
    let mut socket = Socket::connect(server.address(), deadline).unwrap();
    if let Some(credentials) = tls {
        socket = socket.with_tls(credentials, &PS).unwrap();
    }
    let caller = Caller {
        layout: 0,
        service: &PS,
        token: TOKEN,
        worker_id: 0,
        expected: Some(PLACE),
    };
    handshake::connect(&socket, &caller, server.address(), deadline).unwrap();
    socket.set_timeout(LIMIT).unwrap();
    socket
}

struct Defective;

impl Handler for Defective {
    fn open(&self, _client: &Client<'_>) -> Result<Option<Box<dyn Session>>, WireError> {
        panic!("a defect");
    }

    fn lost(&self, _client_id: u64) {}
}

/// Connects to a server with a defect, and waits for what becomes of it.
fn meet_the_defect() {
    let server = start(Defective, None);
    let socket = connect(&server, None);
    let _ = (&socket).read(&mut [0]);
}

#[test]
fn a_request_that_panics_ends_the_process() {
    if std::env::var_os(IN_CHILD).is_some() {
        return meet_the_defect();
    }
    let name = "server::tests::a_request_that_panics_ends_the_process";
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child
        .args(["--exact", name, "--nocapture"])
        .env(IN_CHILD, "1")
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{words}");
    assert!(words.contains("a defect"), "{words}");
}

/// Answers each request by its op, and a request of a name once it is told to.
struct Echo {
    /// A connection is served once it is told to, without its first bytes.
    begin: Mutex<Receiver<usize>>,
    go_on: Arc<Mutex<Receiver<()>>>,
    lost: Sender<u64>,
}

struct EchoSession {
    go_on: Arc<Mutex<Receiver<()>>>,
}

impl Handler for Echo {
    fn open(&self, client: &Client<'_>) -> Result<Option<Box<dyn Session>>, WireError> {
        let first_bytes = lock(&self.begin).recv().unwrap();
        client
            .socket()
            .read_before(&mut vec![0; first_bytes], Instant::now() + LIMIT)?;
        let go_on = self.go_on.clone();
        Ok(Some(Box::new(EchoSession { go_on })))
    }

    fn lost(&self, client_id: u64) {
        let _ = self.lost.send(client_id);
    }
}

impl Session for EchoSession {
    fn answer(&mut self, request: &Request<'_>, _client: &Client<'_>) -> Result<(), WireError> {
        if request.header.op == Op::Name {
            give_way();
            lock(&self.go_on).recv_timeout(LIMIT).unwrap();
        }
        request.reply.send(&Outgoing::new(request.header.op))
    }
}

/// Returns an echo, and what tells it to begin, to go on, and of a lost connection.
fn echo() -> (Echo, Sender<usize>, Sender<()>, Receiver<u64>) {
    let (begin, is_begun) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    let (lost, is_lost) = mpsc::channel();
    let echo = Echo {
        begin: Mutex::new(is_begun),
        go_on: Arc::new(Mutex::new(goes_on)),
        lost,
    };
    (echo, begin, go_on, is_lost)
}

/// A frame of so many bytes.
fn frame(op: Op, sequence: u64, bytes: usize) -> Vec<u8> {
    let array = vec![0; bytes - 2 * HEADER_BYTES];
    let mut frame = Vec::new();
    let outgoing = Outgoing::new(op).bytes(&array);
    outgoing.write_to(sequence, &mut frame).unwrap();
    assert_eq!(frame.len(), bytes);
    frame
}

fn expect_answer(mut socket: &Socket, op: Op, sequence: u64) {
    let mut bytes = [0; HEADER_BYTES];
    socket.read_exact(&mut bytes).unwrap();
    let header = Header::decode(bytes).unwrap();
    assert_eq!((header.op, header.sequence), (op, sequence));
}

#[test]
fn what_has_come_before_a_connection_is_served_is_answered() {
    let job = Authority::new();
    let (ps, worker) = (job.credentials("ps"), job.credentials("worker"));
    let plain = (None, None);
    for (at_server, at_client) in [plain, (Some(&ps), Some(&worker))] {
        let (echo, begin, _, _) = echo();
        let server = start(echo, at_server);
        // Bytes that are decrypted and not read; frames that end with a record, the first of two.
        for (first_bytes, frame_bytes, count) in [(1, 192, 1), (0, 16 << 10, 2), (0, 192, 100)] {
            let socket = connect(&server, at_client);
            let mut bytes = vec![0; first_bytes];
            for sequence in 1..=count {
                bytes.extend(frame(Op::Stats, sequence, frame_bytes));
            }
            (&socket).write_all(&bytes).unwrap();
            begin.send(first_bytes).unwrap();
            for sequence in 1..=count {
                expect_answer(&socket, Op::Stats, sequence);
            }
        }
    }
}

#[test]
fn a_peer_that_ends_with_its_request_is_answered_and_then_lost() {
    let (echo, begin, _, is_lost) = echo();
    let server = start(echo, None);
    let socket = connect(&server, None);
    let request = frame(Op::Stats, 1, 192);
    (&socket).write_all(&request).unwrap();
    let Socket::Tcp(stream) = &socket else {
        panic!("expected TCP");
    };
    stream.shutdown(Shutdown::Write).unwrap();
    begin.send(0).unwrap();
    expect_answer(&socket, Op::Stats, 1);
    assert_eq!(is_lost.recv_timeout(LIMIT), Ok(0));
}

#[test]
fn a_request_that_comes_while_one_is_in_work_is_answered_after_it() {
    let (echo, begin, go_on, _) = echo();
    let server = start(echo, None);
    let (slow, other) = (connect(&server, None), connect(&server, None));
    begin.send(0).unwrap();
    begin.send(0).unwrap();
    // The first time the leader of the lane gives way; then another thread serves the slow one.
    for turn in 0..3 {
        let first = 100 * turn + 1;
        (&slow).write_all(&frame(Op::Name, first, 192)).unwrap();
        for sequence in first..first + 99 {
            let request = frame(Op::Stats, 1 + sequence, 192);
            (&slow).write_all(&request).unwrap();
            (&other)
                .write_all(&frame(Op::Stats, sequence, 192))
                .unwrap();
            expect_answer(&other, Op::Stats, sequence);
        }
        go_on.send(()).unwrap();
        expect_answer(&slow, Op::Name, first);
        for sequence in first..first + 99 {
            expect_answer(&slow, Op::Stats, 1 + sequence);
        }
    }
}

/// Answers at once, after it gave way, or with more than a socket takes.
struct Mixed;

impl Handler for Mixed {
    fn open(&self, _client: &Client<'_>) -> Result<Option<Box<dyn Session>>, WireError> {
        Ok(Some(Box::new(Self)))
    }

    fn lost(&self, _client_id: u64) {}
}

impl Session for Mixed {
    fn answer(&mut self, request: &Request<'_>, _client: &Client<'_>) -> Result<(), WireError> {
        let op = request.header.op;
        if op == Op::Name {
            give_way();
            thread::yield_now();
        }
        let bytes = vec![0; if op == Op::Export { 2 << 20 } else { 0 }];
        request.reply.send(&Outgoing::new(op).bytes(&bytes))
    }
}

/// Sends requests of all kinds in pieces, one or several at a time, and expects each answer.
fn say_all_kinds(socket: &Socket, seed: u64) {
    let mut state = seed;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    let mut sequence = 0;
    for _ in 0..50 {
        let mut ops = Vec::new();
        let mut bytes = Vec::new();
        for _ in 0..1 + random(4) {
            let op = [Op::Stats, Op::Stats, Op::Name, Op::Export][random(4) as usize];
            let size = [192, 192, 192, 40 << 10, 400 << 10][random(5) as usize];
            ops.push(op);
            bytes.extend(frame(op, sequence + ops.len() as u64, size));
        }
        let mut rest = &bytes[..];
        thread::scope(|scope| {
            // Answers are taken meanwhile: a peer that takes none is not read either.
            scope.spawn(|| {
                for &op in &ops {
                    sequence += 1;
                    let mut head = [0; HEADER_BYTES];
                    let mut socket = socket;
                    socket.read_exact(&mut head).unwrap();
                    let header = Header::decode(head).unwrap();
                    assert_eq!((header.op, header.sequence), (op, sequence));
                    let payload = &mut vec![0; header.payload_bytes as usize];
                    socket.read_exact(payload).unwrap();
                }
            });
            while !rest.is_empty() {
                let piece = [63, 300, 70 << 10, 300 << 10][random(4) as usize];
                let (now, later) = rest.split_at(rest.len().min(piece));
                let mut socket = socket;
                socket.write_all(now).unwrap();
                rest = later;
            }
        });
    }
}

#[test]
fn no_request_stays_unanswered_however_its_bytes_come() {
    let job = Authority::new();
    let (ps, worker) = (job.credentials("ps"), job.credentials("worker"));
    for (at_server, at_client) in [(None, None), (Some(&ps), Some(&worker))] {
        let server = start(Mixed, at_server);
        thread::scope(|scope| {
            for seed in 0..4 {
                let server = &server;
                scope.spawn(move || say_all_kinds(&connect(server, at_client), seed));
            }
        });
    }
}

/// A connection that a lane serves by this function.
struct Fake<F> {
    socket: Arc<UnixStream>,
    serve: F,
    is_slow: bool,
    is_silent: bool,
    ended: Sender<()>,
}

impl<F> AsFd for Fake<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<F: Fn() -> Turn + Send + Sync> Served for Fake<F> {
    fn begin(&self, _has_ended: bool) -> bool {
        true
    }

    fn serve(&self, _scratch: &mut Scratch) -> Turn {
        (self.serve)()
    }

    fn is_slow(&self) -> bool {
        self.is_slow
    }

    fn end(&self) {
        let _ = self.ended.send(());
    }

    fn is_silent(&self, _longest: Duration) -> bool {
        self.is_silent
    }
}

#[test]
fn who_is_silent_inside_a_frame_is_ended_though_the_lane_is_handed_on_all_the_time() {
    let lanes = Lanes::new(1, Duration::from_millis(400)).unwrap();
    let (ended, is_ended) = mpsc::channel();
    let (silent, _peer) = UnixStream::pair().unwrap();
    let never = Fake {
        socket: Arc::new(silent),
        serve: || Turn::Done,
        is_slow: false,
        is_silent: true,
        ended: ended.clone(),
    };
    lanes.add(0, Arc::new(never)).unwrap();
    let (busy, mut peer) = UnixStream::pair().unwrap();
    busy.set_nonblocking(true).unwrap();
    let busy = Arc::new(busy);
    let socket = busy.clone();
    let serve = move || {
        let mut byte = [0];
        while matches!((&*busy).read(&mut byte), Ok(1)) {
            give_way();
            (&*busy).write_all(&byte).unwrap();
        }
        Turn::Done
    };
    let (is_slow, is_silent) = (false, false);
    let served = Fake {
        socket,
        serve,
        is_slow,
        is_silent,
        ended,
    };
    lanes.add(2, Arc::new(served)).unwrap();
    peer.set_read_timeout(Some(LIMIT)).unwrap();
    let began = Instant::now();
    while is_ended.try_recv().is_err() {
        assert!(began.elapsed() < LIMIT, "nobody looks for silent peers");
        peer.write_all(&[1]).unwrap();
        peer.read_exact(&mut [0]).unwrap();
    }
    lanes.stop();
}

#[test]
fn who_has_always_more_to_say_keeps_nobody_waiting() {
    let lanes = Lanes::new(1, LIMIT).unwrap();
    let (ended, _) = mpsc::channel();
    let (served, is_served) = mpsc::channel();
    let (is_slow, is_silent) = (false, false);
    let [(greedy, _peer), (other, peer)] = [(); 2].map(|()| UnixStream::pair().unwrap());
    let talks_on = Fake {
        socket: Arc::new(greedy),
        serve: || Turn::More,
        is_slow,
        is_silent,
        ended: ended.clone(),
    };
    lanes.add(0, Arc::new(talks_on)).unwrap();
    let says_a_word = Fake {
        socket: Arc::new(other),
        serve: move || {
            let _ = served.send(());
            Turn::Done
        },
        is_slow,
        is_silent,
        ended,
    };
    lanes.add(2, Arc::new(says_a_word)).unwrap();
    is_served.recv_timeout(LIMIT).unwrap();
    (&peer).write_all(&[1]).unwrap();
    is_served.recv_timeout(LIMIT).unwrap();
    lanes.stop();
}

#[test]
fn a_thread_stays_with_who_is_slow_and_leads_no_lane_until_it_says_nothing() {
    let lanes = Lanes::new(1, LIMIT).unwrap();
    let (served, is_served) = mpsc::channel();
    let (ended, _) = mpsc::channel();
    let [fast, slow] = [(0, false), (2, true)].map(|(id, is_slow)| {
        let (here, there) = UnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        let socket = Arc::new(here);
        let (from, served) = (socket.clone(), served.clone());
        let serve = move || {
            while matches!((&*from).read(&mut [0]), Ok(1)) {
                let _ = served.send(thread::current().id());
            }
            Turn::Done
        };
        let fake = Fake {
            socket,
            serve,
            is_slow,
            is_silent: false,
            ended: ended.clone(),
        };
        lanes.add(id, Arc::new(fake)).unwrap();
        there
    });
    let serves = |mut whom: &UnixStream| {
        whom.write_all(&[1]).unwrap();
        is_served.recv_timeout(LIMIT).unwrap()
    };
    let leader = serves(&fast);
    for _ in 0..100 {
        assert_ne!(serves(&slow), leader);
        assert_eq!(serves(&fast), leader);
    }
    // It goes back to the lane while nothing comes, and is served all the same.
    let deadline = Instant::now() + LIMIT;
    while lanes.num_staying() > 0 {
        assert!(Instant::now() < deadline, "a thread stays for ever");
        thread::yield_now();
    }
    assert_ne!(serves(&slow), leader);
    lanes.stop();
}
