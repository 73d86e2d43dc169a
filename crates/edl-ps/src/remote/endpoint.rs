//! The address of a replica, and its changes when the replica moves.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use edl_wire::Socket;

/// The address of one replica; its connections in all lanes share it.
pub(super) struct Endpoint {
    place: Mutex<Place>,
    moved: Condvar,
    /// It has answered once: what listens there now may be a stranger who took the port.
    pub(super) known: AtomicBool,
}

struct Place {
    address: String,
    /// Sockets to this address, to be ended when the replica moves.
    sockets: Vec<Weak<Socket>>,
    /// Whether no call may wait for the replica any more.
    ended: bool,
}

impl Endpoint {
    pub(super) fn new(address: &str) -> Self {
        Self {
            place: Mutex::new(Place {
                address: address.to_owned(),
                sockets: Vec::new(),
                ended: false,
            }),
            moved: Condvar::new(),
            known: AtomicBool::new(false),
        }
    }

    pub(super) fn address(&self) -> String {
        lock(&self.place).address.clone()
    }

    /// Ends what is under way there.
    pub(super) fn end(&self) {
        let mut place = lock(&self.place);
        place.ended = true;
        for socket in place.sockets.drain(..).filter_map(|s| s.upgrade()) {
            socket.shut_down();
        }
        self.moved.notify_all();
    }

    pub(super) fn move_to(&self, address: &str) {
        let mut place = lock(&self.place);
        if place.address == address {
            return;
        }
        place.address = address.to_owned();
        for socket in place
            .sockets
            .drain(..)
            .filter_map(|socket| socket.upgrade())
        {
            socket.shut_down();
        }
        self.moved.notify_all();
    }

    /// Lets `move_to` end a socket; false if the replica has moved since it was connected.
    pub(super) fn register(&self, socket: &Arc<Socket>, address: &str) -> bool {
        let mut place = lock(&self.place);
        place.sockets.retain(|socket| socket.strong_count() > 0);
        place.sockets.push(Arc::downgrade(socket));
        place.address == address && !place.ended
    }

    /// Waits a while, or until the replica has moved away from `address`.
    pub(super) fn wait(&self, address: &str, pause: Duration) {
        let place = lock(&self.place);
        let moved = |place: &mut Place| place.address == address && !place.ended;
        // Poisoned or not, the wait is over.
        let _ = self.moved.wait_timeout_while(place, pause, moved);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
