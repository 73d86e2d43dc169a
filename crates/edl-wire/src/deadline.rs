//! How long a read or write may take.

use std::io;
use std::time::{Duration, Instant};

/// Time left until a deadline; an error when it has passed.
pub(crate) fn remaining(deadline: Instant) -> io::Result<Duration> {
    match deadline.checked_duration_since(Instant::now()) {
        Some(left) if !left.is_zero() => Ok(left),
        _ => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// True for the two errors by which systems say that a read or write took too long.
pub fn timed_out(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}
