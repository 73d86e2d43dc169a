//! Operations that take long: silence is what times out, not time.

use std::sync::mpsc;
use std::time::Instant;

use edl_wire::handshake::Place;
use edl_wire::op::{Op, Response as _, checkpoint};
use edl_wire::{Client, Handler, Listening, Request, Server, Session, WireError};

use super::*;
use crate::ErrorKind;

const SILENCE: Duration = Duration::from_millis(1500);
const STEP: Duration = Duration::from_millis(100);

/// A replica that writes a checkpoint in so many steps, and shows each.
struct Slow {
    num_steps: u32,
}

impl Handler for Slow {
    fn open(&self, _client: &Client<'_>) -> Result<Option<Box<dyn Session>>, WireError> {
        let num_steps = self.num_steps;
        Ok(Some(Box::new(Self { num_steps })))
    }

    fn lost(&self, _client_id: u64) {}
}

impl Session for Slow {
    fn answer(&mut self, request: &Request<'_>, _client: &Client<'_>) -> Result<(), WireError> {
        assert_eq!(request.header.op, Op::Checkpoint);
        let (_never, step) = mpsc::channel::<()>();
        for _ in 0..self.num_steps {
            let _ = step.recv_timeout(STEP);
            request.reply.progress();
        }
        let entry = "written".to_owned();
        if self.num_steps > 0 {
            let answer = checkpoint::Response { entry };
            request.reply.send(&answer.encode())?;
        }
        Ok(())
    }
}

fn serve_slowly(num_steps: u32) -> (Server, PsClient) {
    let listening = Listening {
        service: &PS,
        place: Place { number: 0, of: 1 },
        host: "127.0.0.1",
        port: 0,
        token: TOKEN,
        tls: None,
    };
    let server = Server::start(&listening, Slow { num_steps }).unwrap();
    let options = RemoteOptions {
        worker_id: 3,
        timeout: STEP,
        silence_timeout: SILENCE,
        connect_timeout: TIMEOUT,
        unix_sockets: true,
        whole_job: true,
        layout: 0,
        service: &PS,
        tls: None,
    };
    let remote = Remote::connect(&[server.address().to_owned()], TOKEN, options).unwrap();
    (server, PsClient::remote(remote))
}

#[test]
fn a_checkpoint_that_shows_progress_may_take_longer_than_any_timeout() {
    let (_server, client) = serve_slowly(25);
    let began = Instant::now();
    assert_eq!(client.checkpoint("somewhere").unwrap(), ["written"]);
    assert!(began.elapsed() > SILENCE);
}

#[test]
fn a_replica_that_shows_nothing_is_given_up_for_its_silence() {
    let (_server, client) = serve_slowly(0);
    let error = client.checkpoint("somewhere").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error.to_string().contains("no answer came in time"),
        "{error}"
    );
}
