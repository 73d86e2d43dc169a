//! The door: it limits the connections that have not proven the token, and what is logged of them.
//!
//! A process of the job proves the token in a moment. So if there is no room, the oldest connection
//! without a proof is closed. Silent strangers keep no process of the job out.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::lock;
use crate::socket::{Host, Origin, Socket};

/// No more connections than this may be without a proof at one time.
const MAX_UNPROVEN: usize = 64;
/// A connection that has to go takes no longer to end.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// So many lines are logged of those turned away in each period.
const LOG_LINES: u32 = 20;
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// Knows those who have not proven the token.
pub(super) struct Door {
    waiting: Mutex<Waiting>,
    /// One of them has proven it, or has gone.
    left: Condvar,
    /// The begin of the period, and its number of lines: strangers may cause a line of the log, but
    /// not a full disk.
    logged: Mutex<(Instant, u32)>,
}

#[derive(Default)]
struct Waiting {
    next_number: u64,
    /// In the order in which they came.
    arrivals: Vec<Arrival>,
}

struct Arrival {
    number: u64,
    origin: Origin,
    socket: Arc<Socket>,
    has_to_go: bool,
}

impl Door {
    pub(super) fn new() -> Self {
        Self {
            waiting: Mutex::default(),
            left: Condvar::new(),
            logged: Mutex::new((Instant::now(), 0)),
        }
    }

    /// Gives a connection a place; `None` if it may have none.
    pub(super) fn enter(
        self: &Arc<Self>,
        origin: &Origin,
        socket: &Arc<Socket>,
    ) -> Option<Unproven> {
        if !origin.may_belong_to_the_job() {
            self.turned_away(origin, &"it belongs to another user");
            return None;
        }
        let deadline = Instant::now() + LEAVE_TIMEOUT;
        let mut waiting = lock(&self.waiting);
        while waiting.arrivals.len() >= MAX_UNPROVEN {
            self.make_room(&mut waiting.arrivals);
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(waiting);
                self.turned_away(origin, &"too many connections have not proven the token");
                return None;
            }
            let woken = self.left.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        let number = waiting.next_number;
        waiting.next_number += 1;
        waiting.arrivals.push(Arrival {
            number,
            origin: origin.clone(),
            socket: socket.clone(),
            has_to_go: false,
        });
        Some(Unproven {
            door: self.clone(),
            number,
        })
    }

    /// Ends one connection, unless one is about to end.
    fn make_room(&self, arrivals: &mut [Arrival]) {
        if arrivals.iter().any(|arrival| arrival.has_to_go) {
            return;
        }
        let hosts: Vec<Host> = arrivals
            .iter()
            .map(|arrival| arrival.origin.host())
            .collect();
        if let Some(arrival) = who_goes(&hosts).and_then(|at| arrivals.get_mut(at)) {
            arrival.has_to_go = true;
            arrival.socket.shut_down();
            let why = format_args!(
                "{MAX_UNPROVEN} connections have not proven the token, and it was the first"
            );
            self.turned_away(&arrival.origin, &why);
        }
    }

    pub(super) fn turned_away(&self, origin: &Origin, why: &dyn Display) {
        let mut window = lock(&self.logged);
        let (since, lines) = &mut *window;
        if since.elapsed() >= LOG_PERIOD {
            if *lines > LOG_LINES {
                log::warn!("{} more connections were turned away", *lines - LOG_LINES);
            }
            (*since, *lines) = (Instant::now(), 0);
        }
        *lines = lines.saturating_add(1);
        if *lines <= LOG_LINES {
            log::warn!("{origin} turned away: {why}");
        }
    }
}

/// Returns the waiting connection to close, given the hosts in the order in which they came: the
/// first connection of the host with the most.
fn who_goes(hosts: &[Host]) -> Option<usize> {
    let mut counts: HashMap<&Host, usize> = HashMap::new();
    for host in hosts {
        *counts.entry(host).or_default() += 1;
    }
    let most = counts.values().max()?;
    hosts.iter().position(|host| counts[host] == *most)
}

/// A place among the connections that have not proven the token.
pub(super) struct Unproven {
    door: Arc<Door>,
    number: u64,
}

impl Drop for Unproven {
    fn drop(&mut self) {
        let mut waiting = lock(&self.door.waiting);
        let is_other = |arrival: &Arrival| arrival.number != self.number;
        waiting.arrivals.retain(is_other);
        self.door.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u8) -> Host {
        Host::Remote([10, 0, 0, number].into())
    }

    #[test]
    fn the_first_of_the_host_with_the_most_connections_goes() {
        let hosts = [1, 2, 3, 2, 2, 3].map(host);
        assert_eq!(who_goes(&hosts), Some(1));
    }

    #[test]
    fn where_each_host_has_one_the_first_goes() {
        assert_eq!(who_goes(&[1, 2, 3].map(host)), Some(0));
        assert_eq!(who_goes(&[]), None);
    }
}
