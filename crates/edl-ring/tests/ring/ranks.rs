//! Rings of threads, each with a listener of its own.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use edl_ring::{Options, Ring, RingListener, World};

pub(crate) const TOKEN: &[u8] = b"a token";

/// What a ring goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Tcp,
    Unix,
    Memory,
}

pub(crate) fn options(by: By) -> Options {
    Options {
        timeout: Duration::from_secs(20),
        silence: Duration::from_secs(20),
        unix_sockets: by != By::Tcp,
        shared_memory: by == By::Memory,
    }
}

/// Runs each rank of a ring in a thread; returns what they return, by rank.
pub(crate) fn ranks<T: Send>(size: usize, by: By, work: impl Fn(Ring) -> T + Sync) -> Vec<T> {
    let listeners: Vec<_> = (0..size)
        .map(|_| RingListener::start("127.0.0.1", 0, TOKEN, None).unwrap())
        .collect();
    let members: Vec<String> = listeners.iter().map(|l| l.address().to_owned()).collect();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                let world = World {
                    id: 7,
                    rank: rank as u32,
                    members: members.clone(),
                };
                let (listener, work): (&Arc<_>, _) = (&listeners[rank], &work);
                scope.spawn(move || {
                    let ring = Ring::form(listener, world, &options(by)).unwrap();
                    work(ring)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}
