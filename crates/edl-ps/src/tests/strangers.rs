//! Bytes of anybody at the port: the server says why, closes, and serves on.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use edl_wire::Socket;
use edl_wire::frame::{HEADER_BYTES, Header, Kind, MAX_PAYLOAD_BYTES, Outgoing, parse};
use edl_wire::handshake::{self, Caller};
use edl_wire::op::Op;
use edl_wire::service::PS;

use super::*;

fn raw(cluster: &Cluster) -> TcpStream {
    TcpStream::connect(&cluster.addresses()[0]).unwrap()
}

/// A connection that has proven the token and may now say anything.
pub(super) fn proven(cluster: &Cluster) -> Socket {
    let deadline = Instant::now() + TIMEOUT;
    let address = &cluster.addresses()[0];
    let socket = Socket::connect(address, deadline).unwrap();
    let caller = Caller {
        layout: 0,
        service: &PS,
        token: TOKEN,
        worker_id: 0,
        expected: None,
    };
    handshake::connect(&socket, &caller, address, deadline).unwrap();
    socket.set_timeout(TIMEOUT).unwrap();
    socket
}

/// What the server says until it closes the connection.
fn last_words(mut reader: impl Read) -> Vec<u8> {
    let mut words = Vec::new();
    // A connection may also be reset: bytes that nobody read were on their way.
    let _ = reader.read_to_end(&mut words);
    words
}

fn error_of(words: &[u8]) -> String {
    let (header, payload) = words.split_at(HEADER_BYTES);
    let header = Header::decode(header.try_into().unwrap()).unwrap();
    assert_eq!(header.op, Op::Error);
    let arrays = parse(header.num_arrays, payload).unwrap();
    arrays[0].text().unwrap().to_owned()
}

fn still_serves(cluster: &Cluster) {
    let client = cluster.client();
    declare(&client);
    pull(&client, 0);
}

#[test]
fn garbage_instead_of_a_proof_ends_the_connection() {
    let cluster = Cluster::start(1);
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0; 4096],
        &[0xff; 9],
        b"EDLP\x07\0\0\0",
    ] {
        let mut stream = raw(&cluster);
        stream.write_all(garbage).unwrap();
        // No more than the greeting is said to a stranger.
        assert!(last_words(stream).len() <= 40);
    }
    still_serves(&cluster);
}

#[test]
fn a_frame_before_the_proof_is_garbage() {
    let cluster = Cluster::start(1);
    let mut stream = raw(&cluster);
    Outgoing::new(Op::Stats).write_to(1, &mut stream).unwrap();
    assert!(last_words(stream).len() <= 40);
    still_serves(&cluster);
}

#[test]
fn a_proof_that_is_heard_again_is_refused() {
    let cluster = Cluster::start(1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let between = listener.local_addr().unwrap().to_string();
    // A stranger relays one handshake and keeps what was said.
    let proof = std::thread::scope(|scope| {
        let client = scope.spawn(|| connect(&[between], TOKEN, TIMEOUT, false).map(|_| ()));
        let (mut near, _) = listener.accept().unwrap();
        let mut far = raw(&cluster);
        let mut greeting = [0; 40];
        far.read_exact(&mut greeting).unwrap();
        near.write_all(&greeting).unwrap();
        let mut proof = [0; 80];
        near.read_exact(&mut proof).unwrap();
        // It answers with what it heard: it knows no other bytes made with the token.
        near.write_all(&[&b"EDLP\x02\0\x01\0"[..], &[0; 72], &proof[48..]].concat())
            .unwrap();
        let error = client.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Authentication);
        proof
    });
    let mut stream = raw(&cluster);
    stream.read_exact(&mut [0; 40]).unwrap();
    stream.write_all(&proof).unwrap();
    let verdict = last_words(stream);
    assert_eq!(&verdict[..8], b"EDLP\x02\0\x02\0");
    assert!(verdict[8..].iter().all(|&byte| byte == 0));
}

#[test]
fn strangers_who_say_nothing_keep_nobody_out_and_the_first_of_them_goes() {
    let cluster = Cluster::start(1);
    let mut silent: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stream = raw(&cluster);
            stream.read_exact(&mut [0; 40]).unwrap();
            stream
        })
        .collect();
    let began = Instant::now();
    still_serves(&cluster);
    // Long before any of them has to have proven something.
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(last_words(silent.remove(0)).is_empty());
    let last = silent.last_mut().unwrap();
    last.set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let waits = last.read(&mut [0]).unwrap_err();
    assert!(edl_wire::timed_out(&waits), "{waits}");
}

#[test]
fn a_frame_cut_anywhere_ends_that_connection_only() {
    let cluster = Cluster::start(1);
    still_serves(&cluster);
    let mut frame = Vec::new();
    let keys: Vec<u64> = (0..100).collect();
    Outgoing::new(Op::Pull)
        .keys(0, &keys)
        .write_to(1, &mut frame)
        .unwrap();
    for cut in [
        1,
        HEADER_BYTES - 1,
        HEADER_BYTES,
        HEADER_BYTES + 30,
        frame.len() - 1,
    ] {
        let socket = proven(&cluster);
        (&socket).write_all(&frame[..cut]).unwrap();
        let Socket::Tcp(stream) = &socket else {
            panic!("not TCP")
        };
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(last_words(&socket).is_empty());
    }
    still_serves(&cluster);
}

#[test]
fn malformed_frames_are_told_why() {
    let cluster = Cluster::start(1);
    still_serves(&cluster);
    let header = Header {
        op: Op::Pull,
        flags: 0,
        num_arrays: 0,
        sequence: 5,
        payload_bytes: 0,
        args: [0; 4],
    };
    let oversize = Header {
        payload_bytes: MAX_PAYLOAD_BYTES + 1,
        ..header
    };
    let too_many = Header {
        num_arrays: u32::MAX,
        ..header
    };
    let no_directory = Header {
        num_arrays: 1,
        ..header
    };
    let mut unknown_op = header.encode();
    unknown_op[6] = 200;
    let mut other_version = header.encode();
    other_version[4] = 9;
    for (bytes, expected) in [
        (oversize.encode(), "the limit is 1073741824"),
        (too_many.encode(), "a frame of 4294967295 arrays"),
        (
            no_directory.encode(),
            "too short for a directory of 1 arrays",
        ),
        (unknown_op, "unknown operation 200"),
        (other_version, "wire version 9, this process speaks 2"),
    ] {
        let socket = proven(&cluster);
        (&socket).write_all(&bytes).unwrap();
        let error = error_of(&last_words(&socket));
        assert!(error.contains(expected), "{error}");
    }
    still_serves(&cluster);
}

#[test]
fn requests_with_the_wrong_arrays_are_told_why() {
    let cluster = Cluster::start(1);
    still_serves(&cluster);
    for (request, expected) in [
        (Outgoing::new(Op::Pull).text("x"), "expected [Keys]"),
        (Outgoing::new(Op::Push), "a push without dense and state"),
        (
            Outgoing::new(Op::Push).keys(0, &[]).dense(&[]).state(&[]),
            "keys without gradients",
        ),
        (
            Outgoing::new(Op::Push)
                .keys(0, &[1, 2])
                .rows(0, 8, &[0.0; 8])
                .dense(&[])
                .state(&[]),
            "2 keys of table 0 with 1 gradients",
        ),
        (
            Outgoing::new(Op::Declare).text("{}"),
            "expected [Text, Dense, State]",
        ),
        (Outgoing::new(Op::Error), "where a request was expected"),
        (
            Outgoing::new(Op::BeginTask).args([0, 1 << 40, 0, 0]),
            "expected 32 bits",
        ),
    ] {
        let socket = proven(&cluster);
        request.write_to(1, &mut &socket).unwrap();
        let error = error_of(&last_words(&socket));
        assert!(error.contains(expected), "{error}");
    }
    still_serves(&cluster);
}

#[test]
fn rows_that_would_not_fit_into_a_frame_are_refused_without_being_made() {
    let cluster = Cluster::start(1);
    still_serves(&cluster);
    let socket = proven(&cluster);
    let wide = model().replace("\"dim\": 8", "\"dim\": 16384");
    let other = Cluster::start(1);
    other
        .client()
        .declare(&wide, &[0.0; 37], &[0.0; 5])
        .unwrap();
    drop(socket);
    let keys = vec![1u64; 20_000];
    let socket = proven(&other);
    Outgoing::new(Op::Pull)
        .keys(0, &keys)
        .write_to(1, &mut &socket)
        .unwrap();
    let mut header = [0; HEADER_BYTES];
    (&socket).read_exact(&mut header).unwrap();
    let header = Header::decode(header).unwrap();
    let mut payload = vec![0; header.payload_bytes as usize];
    (&socket).read_exact(&mut payload).unwrap();
    let arrays = parse(header.num_arrays, &payload).unwrap();
    assert_eq!((header.op, arrays[0].entry.kind), (Op::Error, Kind::Text));
    assert!(arrays[0].text().unwrap().contains("take 1310720000 bytes"));
}

#[test]
fn a_stranger_at_the_address_of_a_replica_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&[b'x'; 64]).unwrap();
            last_words(stream);
        });
        let error = connect(&[address], TOKEN, TIMEOUT, true).err().unwrap();
        assert!(
            error
                .to_string()
                .contains("this is no elasticdl ps replica"),
            "{error}"
        );
    });
}

#[test]
fn stopping_ends_connections_of_every_kind() {
    let cluster = Cluster::start(1);
    let (_stranger, worker) = (raw(&cluster), proven(&cluster));
    cluster.servers[0].stop();
    assert!(last_words(&worker).is_empty());
    cluster.servers[0].stop();
}
