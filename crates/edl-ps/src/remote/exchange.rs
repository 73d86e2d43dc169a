//! One question and its answers, on the connections to all replicas that are asked.
//!
//! One loop sends what sockets have room for and takes what has come. So a replica that is slow to
//! read its frame, or to answer, holds up no other. A frame that is left half-way is made again,
//! equal to the first, and goes on where it stopped: nothing of it is kept meanwhile.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use edl_wire::frame::Outgoing;
use edl_wire::{Connection, WireError, timed_out};

use super::questions::Question;
use super::{Link, Remote};
use crate::error::PsError;

impl Remote {
    /// Asks several replicas one question, without trying again where a connection is lost.
    pub(super) fn ask_once<Q: Question>(
        &self,
        links: &mut [Link],
        replicas: Range<usize>,
        question: &mut Q,
        deadline: Instant,
    ) -> Vec<Result<(), PsError>> {
        let mut exchange = Exchange {
            remote: self,
            first: replicas.start,
            outcomes: replicas.clone().map(|_| Ok(())).collect(),
            silence: self.silence(question.lane()),
            links,
            question,
            deadline,
        };
        let mut asked: Vec<usize> = replicas.collect();
        asked.retain(|&replica| exchange.question.concerns(replica));
        match asked[..] {
            [replica] if exchange.send(replica) => drop(exchange.take(replica)),
            [_] => {}
            _ => exchange.with_all(asked),
        }
        exchange.outcomes
    }

    /// Sends a question on a connection, made if need be.
    pub(super) fn send<Q: Question>(
        &self,
        link: &mut Link,
        replica: usize,
        question: &Q,
        deadline: Instant,
    ) -> Result<(), PsError> {
        self.send_by(link, replica, question, deadline, Connection::send)
    }

    fn send_by<Q: Question, T>(
        &self,
        link: &mut Link,
        replica: usize,
        question: &Q,
        deadline: Instant,
        send: impl FnOnce(&mut Connection, &Outgoing<'_>) -> Result<T, WireError>,
    ) -> Result<T, PsError> {
        let connection = self.connected(link, replica, question.lane(), deadline);
        let sent = connection.and_then(|connection| {
            let sent = question.say(replica, |frame| send(connection, frame));
            Ok(sent?)
        });
        self.judged(link, replica, sent)
    }

    /// Takes the answer to a question that was sent.
    pub(super) fn take<Q: Question>(
        &self,
        link: &mut Link,
        replica: usize,
        question: &mut Q,
    ) -> Result<(), PsError> {
        let Some(connection) = link else {
            let lost = io::Error::from(io::ErrorKind::NotConnected);
            return Err(WireError::from(lost).into());
        };
        let taken = connection
            .read_header(Q::OP)
            .and_then(|header| question.take(replica, &header, connection));
        self.judged(link, replica, taken.map_err(PsError::from))
    }
}

/// A question on its way.
struct Exchange<'e, Q> {
    remote: &'e Remote,
    links: &'e mut [Link],
    question: &'e mut Q,
    first: usize,
    /// For each replica from the first on.
    outcomes: Vec<Result<(), PsError>>,
    /// How long nothing may come.
    silence: Duration,
    deadline: Instant,
}

impl<Q: Question> Exchange<'_, Q> {
    fn with_all(&mut self, mut asked: Vec<usize>) {
        asked.retain(|&replica| self.send_at_once(replica));
        // Also where one has failed: an answer that is still to come must not meet the next call.
        if self.question.has_small_answers() {
            self.send_rests(&mut asked);
            self.take_small(&mut asked);
        }
        while asked.len() > 1 || (self.silence.is_zero() && !asked.is_empty()) {
            self.go_on(&mut asked);
        }
        // One is waited for by sending to it and reading from it.
        if let [replica] = asked[..]
            && (!self.is_sending(replica) || self.send(replica))
        {
            self.take(replica);
        }
    }

    /// Sends what did not fit into the sockets. No answer need be taken meanwhile.
    fn send_rests(&mut self, asked: &mut Vec<usize>) {
        let is_sending = |replica: &usize| self.is_sending(*replica);
        let mut sending: Vec<usize> = asked.iter().copied().filter(is_sending).collect();
        while sending.len() > 1 {
            self.go_on(&mut sending);
            sending.retain(|&replica| self.is_sending(replica));
        }
        if let [replica] = sending[..] {
            self.send(replica);
        }
        asked.retain(|&replica| self.outcomes[replica - self.first].is_ok());
    }

    /// Takes answers that lie in their sockets and hold nobody up. Who was asked last answers last,
    /// as a rule: then this thread is woken once for all of them.
    fn take_small(&mut self, asked: &mut Vec<usize>) {
        while !self.silence.is_zero()
            && let Some(replica) = asked.pop()
        {
            self.take(replica);
        }
    }

    /// Waits until one of some replicas has room for its frame, or an answer; then sends to all that
    /// have room and takes all answers. Leaves those with whom there is more to do.
    fn go_on(&mut self, asked: &mut Vec<usize>) {
        let links = asked.iter();
        let connections = links.filter_map(|&replica| self.links[replica].as_ref());
        let is_ready = match Connection::wait_for_any(connections, self.silence) {
            Ok(is_ready) => is_ready,
            Err(error) => {
                for replica in asked.drain(..) {
                    let silent = Err(WireError::from(io::Error::from(error.kind())).into());
                    let link = &mut self.links[replica];
                    let silent = self.remote.judged(link, replica, silent);
                    self.note_wait(replica, silent);
                }
                return;
            }
        };
        let mut is_ready = is_ready.into_iter();
        asked.retain(|&replica| {
            if !is_ready.next().unwrap_or(true) {
                return true;
            }
            if self.is_sending(replica) {
                return self.send_at_once(replica);
            }
            self.take(replica);
            false
        });
    }

    fn is_sending(&self, replica: usize) -> bool {
        let link = self.links[replica].as_ref();
        link.is_some_and(Connection::is_sending)
    }

    /// Sends what there is room for; false if that failed.
    fn send_at_once(&mut self, replica: usize) -> bool {
        let send = Connection::send_at_once;
        let link = &mut self.links[replica];
        let sent = (self.remote).send_by(link, replica, self.question, self.deadline, send);
        self.note(replica, sent.map(drop))
    }

    /// Sends all that is left, waiting for room; false if that failed.
    fn send(&mut self, replica: usize) -> bool {
        let link = &mut self.links[replica];
        let sent = self
            .remote
            .send(link, replica, self.question, self.deadline);
        self.note_wait(replica, sent)
    }

    fn take(&mut self, replica: usize) -> bool {
        let link = &mut self.links[replica];
        let taken = self.remote.take(link, replica, self.question);
        self.note_wait(replica, taken)
    }

    /// Notes what came of waiting for a replica. Where nothing came, the others had as long.
    fn note_wait(&mut self, replica: usize, outcome: Result<(), PsError>) -> bool {
        if let Err(PsError::Wire(WireError::Connection(error))) = &outcome
            && timed_out(error)
        {
            self.silence = Duration::ZERO;
        }
        self.note(replica, outcome)
    }

    fn note(&mut self, replica: usize, outcome: Result<(), PsError>) -> bool {
        let is_ok = outcome.is_ok();
        self.outcomes[replica - self.first] = outcome;
        is_ok
    }
}
