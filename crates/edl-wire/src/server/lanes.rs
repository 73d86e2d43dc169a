//! Serves many connections with few threads: who leads a lane serves whoever has sent something.
//!
//! A **lane** has an epoll instance and a part of the connections. One thread leads it: it waits for
//! events, and serves the connections that have sent something, one after the other. What may take
//! long ([`give_way`]) hands the lane to another thread first: a wait for other clients, a large
//! answer, a peer that takes nothing. So no connection waits for the slowness of another one, and
//! there are as many threads as lanes and as requests that take long.
//!
//! Events are edge-triggered: a connection that is being served needs no change of its registration.
//! So whoever serves a connection takes all that has come, or says that there is [`Turn::More`].

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::scratch::Scratch;
use super::{lock, spawn};
use crate::error::WireError;

const EVENTS: usize = 64;
/// A lane looks so many times in the longest silence for peers that are silent inside a frame.
const SWEEPS: u32 = 8;
/// A thread without a lane ends after so long.
const IDLE: Duration = Duration::from_secs(10);
/// Most threads are of use where there are as many cores.
const MOST_LANES: usize = 8;
/// The token of the event that wakes a lane.
const WAKE: u64 = u64::MAX;

/// How a connection's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// All that has come is answered.
    Done,
    /// More may have come, and others are to be served first. Only the leader of a lane says this.
    More,
    /// The connection is over.
    Over,
}

/// One connection, as a lane knows it.
pub(super) trait Served: Send + Sync {
    /// Serves what has come. `has_ended`: the peer says nothing after it.
    ///
    /// It may be called while another thread serves the connection, which then goes on.
    fn serve(&self, has_ended: bool, scratch: &mut Scratch) -> Turn;

    /// Ends a connection whose peer is silent inside a frame.
    fn end(&self);

    /// Whether its peer is silent inside a frame for longer than this.
    fn is_silent(&self, longest: Duration) -> bool;
}

struct Lane {
    epoll: OwnedFd,
    wake: OwnedFd,
    connections: Mutex<HashMap<u64, Arc<dyn Served>>>,
    /// Connections that have sent something and are not served yet.
    ready: Mutex<VecDeque<Ready>>,
    /// Whether it has had a connection; before that nobody leads it.
    is_in_use: AtomicBool,
    swept: Mutex<Instant>,
}

#[derive(Clone, Copy)]
struct Ready {
    id: u64,
    has_ended: bool,
}

/// All lanes of a server, and their threads.
pub(super) struct Lanes {
    lanes: Vec<Arc<Lane>>,
    pool: Arc<Pool>,
}

struct Pool {
    /// The longest silence inside a frame.
    silence: Duration,
    state: Mutex<PoolState>,
    changed: Condvar,
    stopping: AtomicBool,
}

#[derive(Default)]
struct PoolState {
    /// Lanes that nobody leads.
    leaderless: VecDeque<Arc<Lane>>,
    num_idle: usize,
    threads: Vec<JoinHandle<()>>,
}

thread_local! {
    /// The lane that this thread leads.
    static LEADS: RefCell<Option<(Arc<Lane>, Arc<Pool>)>> = const { RefCell::new(None) };
}

/// Says that this thread may wait from now on: another one serves the connections that it serves.
pub fn give_way() {
    if let Some((lane, pool)) = LEADS.take() {
        pool.hand_over(lane);
    }
}

/// Whether this thread leads a lane.
pub(super) fn leads() -> bool {
    LEADS.with_borrow(Option::is_some)
}

/// As many lanes as are of use on this machine.
pub(super) fn most_lanes() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    cores.min(MOST_LANES)
}

impl Lanes {
    /// Makes so many lanes; their threads begin with their first connections.
    ///
    /// # Errors
    /// [`WireError::Connection`] without file descriptors.
    pub(super) fn new(count: usize, silence: Duration) -> Result<Self, WireError> {
        let pool = Arc::new(Pool {
            silence,
            state: Mutex::default(),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
        });
        let lanes: std::io::Result<Vec<_>> = (0..count).map(|_| Lane::new()).collect();
        Ok(Self {
            lanes: lanes?,
            pool,
        })
    }

    /// Serves a connection from now on.
    pub(super) fn add(
        &self,
        id: u64,
        socket: impl AsFd,
        connection: Arc<dyn Served>,
    ) -> Result<(), WireError> {
        let lane = &self.lanes[(id / 2) as usize % self.lanes.len()];
        lock(&lane.connections).insert(id, connection);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        let added = epoll::add(&lane.epoll, socket, epoll::EventData::new_u64(id), flags);
        added.map_err(|error| {
            lock(&lane.connections).remove(&id);
            WireError::System(format!("a connection cannot be watched: {error}"))
        })?;
        // Bytes that came with the proof may be in memory already: no event will tell of them.
        let has_ended = false;
        lock(&lane.ready).push_back(Ready { id, has_ended });
        lane.wake();
        if !lane.is_in_use.swap(true, Ordering::SeqCst) {
            self.pool.hand_over(lane.clone());
        }
        Ok(())
    }

    /// Ends all threads; requests in work are finished.
    pub(super) fn stop(&self) {
        self.pool.stopping.store(true, Ordering::SeqCst);
        self.pool.changed.notify_all();
        self.lanes.iter().for_each(|lane| lane.wake());
        loop {
            let threads = std::mem::take(&mut lock(&self.pool.state).threads);
            if threads.is_empty() {
                break;
            }
            for thread in threads {
                // A panic was logged where it happened.
                let _ = thread.join();
            }
        }
        for lane in &self.lanes {
            lock(&lane.connections).clear();
        }
    }
}

impl Pool {
    /// Has another thread lead a lane.
    fn hand_over(self: &Arc<Self>, lane: Arc<Lane>) {
        let mut state = lock(&self.state);
        state.leaderless.push_back(lane);
        if state.num_idle >= state.leaderless.len() {
            self.changed.notify_one();
            return;
        }
        state.threads.retain(|thread| !thread.is_finished());
        let pool = self.clone();
        match spawn("connections", move || pool.work()) {
            Ok(thread) => state.threads.push(thread),
            // Whoever is idle next takes it: the thread that hands it over, at the latest.
            Err(error) => log::warn!("{error}"),
        }
    }

    fn work(self: &Arc<Self>) {
        let mut scratch = Scratch::default();
        while let Some(lane) = self.next_lane() {
            LEADS.set(Some((lane.clone(), self.clone())));
            lane.lead(self, &mut scratch);
        }
    }

    /// Waits for a lane that nobody leads; `None`: this thread is not needed.
    fn next_lane(&self) -> Option<Arc<Lane>> {
        let mut state = lock(&self.state);
        state.num_idle += 1;
        let until = Instant::now() + IDLE;
        let found = loop {
            if self.stopping.load(Ordering::SeqCst) {
                break None;
            }
            if let Some(lane) = state.leaderless.pop_front() {
                break Some(lane);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break None;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        state.num_idle -= 1;
        found
    }
}

impl Lane {
    fn new() -> std::io::Result<Arc<Self>> {
        let lane = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            connections: Mutex::default(),
            ready: Mutex::default(),
            is_in_use: AtomicBool::new(false),
            swept: Mutex::new(Instant::now()),
        };
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&lane.epoll, &lane.wake, data, epoll::EventFlags::IN)?;
        Ok(Arc::new(lane))
    }

    fn wake(&self) {
        // It fails only if it was woken already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Serves until another thread leads, or all is to stop.
    fn lead(self: &Arc<Self>, pool: &Pool, scratch: &mut Scratch) {
        let mut events = Vec::with_capacity(EVENTS);
        while !pool.stopping.load(Ordering::SeqCst) {
            // Those who have more to say come after those who have said something meanwhile.
            for _ in 0..self.num_ready() {
                let Some(ready) = self.next_ready() else {
                    break;
                };
                self.serve(ready, scratch);
                if !leads() {
                    return;
                }
            }
            let longest = match self.num_ready() {
                0 => pool.silence / SWEEPS,
                _ => Duration::ZERO,
            };
            self.look(&mut events, longest);
            self.sweep(pool.silence);
        }
        LEADS.set(None);
    }

    // Two functions, so that the lock is not held while a connection is served.

    fn num_ready(&self) -> usize {
        lock(&self.ready).len()
    }

    fn next_ready(&self) -> Option<Ready> {
        lock(&self.ready).pop_front()
    }

    /// Waits until some connections have sent something, but no longer than this.
    fn look(&self, events: &mut Vec<epoll::Event>, longest: Duration) {
        let longest = Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: longest.subsec_nanos().into(),
        };
        events.clear();
        let buffer = rustix::buffer::spare_capacity(events);
        match epoll::wait(&self.epoll, buffer, Some(&longest)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => log::error!("connections cannot be waited for: {error}"),
        }
        let ended = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        lock(&self.ready).extend(events.iter().map(|event| Ready {
            id: event.data.u64(),
            has_ended: { event.flags }.intersects(ended),
        }));
    }

    fn serve(&self, Ready { id, has_ended }: Ready, scratch: &mut Scratch) {
        if id == WAKE {
            // It fails only if another thread has read it.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            return;
        }
        let Some(connection) = lock(&self.connections).get(&id).cloned() else {
            return; // it is over
        };
        match connection.serve(has_ended, scratch) {
            Turn::Done => {}
            Turn::More => lock(&self.ready).push_back(Ready { id, has_ended }),
            Turn::Over => drop(lock(&self.connections).remove(&id)),
        }
    }

    /// Ends the connections whose peers are silent inside a frame, now and then.
    fn sweep(&self, silence: Duration) {
        let mut swept = lock(&self.swept);
        if swept.elapsed() < silence / SWEEPS {
            return;
        }
        *swept = Instant::now();
        for connection in lock(&self.connections).values() {
            if connection.is_silent(silence) {
                connection.end();
            }
        }
    }
}
