//! Bytes that all sockets of this process have sent and received, for its heartbeats.

use std::sync::atomic::{AtomicU64, Ordering};

// Written by each thread that has sent or received something. Nothing else depends on them, so no
// order is needed.
static SENT: AtomicU64 = AtomicU64::new(0);
static RECEIVED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn sent(bytes: usize) {
    SENT.fetch_add(bytes as u64, Ordering::Relaxed);
}

pub(crate) fn received(bytes: usize) {
    RECEIVED.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Bytes sent and bytes received up to now, as they were before TLS.
pub fn traffic() -> (u64, u64) {
    (
        SENT.load(Ordering::Relaxed),
        RECEIVED.load(Ordering::Relaxed),
    )
}
