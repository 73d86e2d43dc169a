//! A connection that has proven the token, between two looks at it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::lanes::{Served, Turn, gave_way, leads};
use super::requests::{Incoming, Received, Reply, Request};
use super::scratch::Scratch;
use super::{Client, Session, Shared, ending_with_panics, lock};
use crate::error::WireError;
use crate::op::error;
use crate::socket::{Origin, Socket};

/// A connection whose peer does not wait for answers has so many requests answered in one turn.
const MOST_IN_TURN: usize = 16;

/// Who is at the other end.
pub(super) struct Known {
    pub(super) id: u64,
    pub(super) layout: u16,
    pub(super) worker_id: i64,
    pub(super) peer: Origin,
}

impl Known {
    pub(super) fn has_left(&self, shared: &Shared, how: Result<(), WireError>) {
        let Self {
            worker_id, peer, ..
        } = self;
        match how {
            Ok(()) => log::debug!("worker {worker_id} at {peer} has left"),
            Err(error) if shared.stopping.load(Ordering::SeqCst) => log::debug!("{peer}: {error}"),
            Err(error) => log::warn!("worker {worker_id} at {peer}: {error}; connection closed"),
        }
    }
}

/// A connection whose requests are frames.
pub(super) struct Connection {
    /// The server owns its connections.
    shared: Weak<Shared>,
    socket: Arc<Socket>,
    known: Known,
    state: Mutex<State>,
    /// How often something has come since all was answered; whoever makes it 1 serves.
    came: AtomicU32,
    /// The peer says nothing after what has come.
    has_ended: AtomicBool,
    /// Its last turn gave way.
    is_slow: AtomicBool,
    began: Instant,
    /// The milliseconds after `began` at which a part of a frame came last; 0 between two frames.
    part_came: AtomicU64,
}

struct State {
    session: Box<dyn Session>,
    incoming: Incoming,
}

impl Connection {
    pub(super) fn new(
        shared: &Arc<Shared>,
        socket: &Arc<Socket>,
        known: Known,
        session: Box<dyn Session>,
    ) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            socket: socket.clone(),
            known,
            state: Mutex::new(State {
                session,
                incoming: Incoming::default(),
            }),
            came: AtomicU32::new(0),
            has_ended: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
            began: Instant::now(),
            part_came: AtomicU64::new(0),
        }
    }

    /// Answers the requests that have come.
    fn answer(
        &self,
        shared: &Shared,
        state: &mut State,
        scratch: &mut Scratch,
    ) -> Result<Turn, WireError> {
        let client = Client {
            socket: &self.socket,
            stopping: &shared.stopping,
            id: self.known.id,
            layout: self.known.layout,
        };
        let mut answered = 0;
        loop {
            if answered >= MOST_IN_TURN && leads() {
                return Ok(Turn::More);
            }
            let State { session, incoming } = state;
            let received = match incoming.receive(&self.socket, scratch) {
                Ok(received) => received,
                Err(error @ WireError::Malformed { .. }) => {
                    // The sequence is not known of what is no frame.
                    let refusal = error::Response {
                        kind: error.kind(),
                        message: error.to_string(),
                    };
                    Reply::new(&self.socket, 0).refuse(&refusal)?;
                    return Err(error);
                }
                Err(error) => return Err(error),
            };
            match received {
                Received::End => return Ok(Turn::Over),
                Received::Nothing => {
                    let is_inside = incoming.is_inside();
                    let millis = self.began.elapsed().as_millis() as u64;
                    let came = if is_inside { millis.max(1) } else { 0 };
                    self.part_came.store(came, Ordering::Relaxed);
                    return Ok(Turn::Done);
                }
                Received::Frame {
                    header,
                    payload,
                    is_last,
                } => {
                    self.part_came.store(0, Ordering::Relaxed);
                    let reply = Reply::new(&self.socket, header.sequence);
                    let request = Request {
                        header,
                        payload,
                        reply,
                    };
                    session.answer(&request, &client)?;
                    answered += 1;
                    if is_last && !self.has_ended.load(Ordering::SeqCst) {
                        return Ok(Turn::Done);
                    }
                }
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Served for Connection {
    fn begin(&self, has_ended: bool) -> bool {
        if has_ended {
            self.has_ended.store(true, Ordering::SeqCst);
        }
        // Of one that is over it stays above 0: nobody serves it any more.
        self.came.fetch_add(1, Ordering::SeqCst) == 0
    }

    fn serve(&self, scratch: &mut Scratch) -> Turn {
        let Some(shared) = self.shared.upgrade() else {
            return Turn::Over;
        };
        gave_way(); // what others did in this thread is forgotten
        let mut is_slow = false;
        loop {
            let came = self.came.load(Ordering::SeqCst);
            let answered = ending_with_panics(&self.known.peer, || {
                self.answer(&shared, &mut lock(&self.state), scratch)
            });
            is_slow |= gave_way();
            self.is_slow.store(is_slow, Ordering::SeqCst);
            let how = match answered {
                Ok(Turn::More) => {
                    self.came.store(0, Ordering::SeqCst);
                    return Turn::More;
                }
                Ok(Turn::Done) => {
                    let all = Ordering::SeqCst;
                    match self.came.compare_exchange(came, 0, all, all) {
                        Ok(_) => return Turn::Done,
                        Err(_) => continue,
                    }
                }
                Ok(Turn::Over) => Ok(()),
                Err(error) => Err(error),
            };
            self.known.has_left(&shared, how);
            shared.is_over(self.known.id, &self.socket);
            return Turn::Over;
        }
    }

    fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::SeqCst)
    }

    fn is_silent(&self, longest: Duration) -> bool {
        let came = self.part_came.load(Ordering::Relaxed);
        let now = self.began.elapsed().as_millis() as u64;
        came > 0 && u128::from(now.saturating_sub(came)) > longest.as_millis()
    }

    fn end(&self) {
        let Known {
            worker_id, peer, ..
        } = &self.known;
        log::warn!("worker {worker_id} at {peer} is silent inside a frame");
        self.socket.shut_down();
    }
}
