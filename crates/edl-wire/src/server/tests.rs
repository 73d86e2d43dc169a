//! A server in a process of its own, since it is to end with it.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use super::*;
use crate::handshake::Caller;
use crate::service::PS;

const IN_CHILD: &str = "ELASTICDL_TEST_HANDLER_PANICS";
const TOKEN: &[u8] = b"a token";

struct Defective;

impl Handler for Defective {
    fn serve(&self, _client: &Client<'_>) -> Result<(), WireError> {
        panic!("a defect");
    }

    fn lost(&self, _client_id: u64) {}
}

/// Connects to a server with a defect, and waits for what becomes of it.
fn meet_the_defect() {
    let place = Place { number: 0, of: 1 };
    let listening = Listening {
        service: &PS,
        place,
        host: "127.0.0.1",
        port: 0,
        token: TOKEN,
        tls: None,
    };
    let server = Server::start(&listening, Defective).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let socket = Socket::connect(server.address(), deadline).unwrap();
    let caller = Caller {
        layout: 0,
        service: &PS,
        token: TOKEN,
        worker_id: 0,
        expected: Some(place),
    };
    handshake::connect(&socket, &caller, server.address(), deadline).unwrap();
    socket.set_timeout(Duration::from_secs(30)).unwrap();
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
