//! The door: how many may stand there who have not proven the token, and what is logged of them.

use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::lock;

/// No more connections than this may be without a proof at one time.
const MAX_UNPROVEN: usize = 64;
/// So many lines are logged of those turned away in each period.
const LOG_LINES: u32 = 20;
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// Counts those who have not proven the token.
pub(super) struct Door {
    unproven: AtomicUsize,
    /// When the period began, and its lines: strangers fill a line of the log, not the disk.
    logged: Mutex<(Instant, u32)>,
}

impl Door {
    pub(super) fn new() -> Self {
        Self {
            unproven: AtomicUsize::new(0),
            logged: Mutex::new((Instant::now(), 0)),
        }
    }

    /// Gives a connection a place, or says why not.
    pub(super) fn enter(self: &Arc<Self>, peer: &str) -> Option<Unproven> {
        let entered = self
            .unproven
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
                (count < MAX_UNPROVEN).then_some(count + 1)
            });
        if entered.is_err() {
            self.turned_away(
                peer,
                &format_args!("{MAX_UNPROVEN} connections have not proven the token yet"),
            );
            return None;
        }
        Some(Unproven(self.clone()))
    }

    pub(super) fn turned_away(&self, peer: &str, why: &dyn Display) {
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
            log::warn!("{peer} turned away: {why}");
        }
    }
}

/// A place among the connections that have not proven the token.
pub(super) struct Unproven(Arc<Door>);

impl Drop for Unproven {
    fn drop(&mut self) {
        self.0.unproven.fetch_sub(1, Ordering::SeqCst);
    }
}
