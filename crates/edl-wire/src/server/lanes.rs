//! Serves many connections with few threads: who leads a lane serves whoever has sent something.
//!
//! A **lane** has an epoll instance and a part of the connections. One thread leads it: it waits for
//! events, and serves the connections that have sent something, one after the other. What may take
//! long ([`give_way`]) hands the lane to another thread first: a wait for other clients, a large
//! answer, a peer that takes nothing. So no connection waits for the slowness of another one, and
//! there are as many threads as lanes and as requests that take long.
//!
//! A connection that gave way in its last turn is slow. The thread that served it stays with it, and
//! the lane is not told of it meanwhile. So no large request wakes the thread that leads, nor draws it
//! to the core where one is worked on. Few threads stay at a time. Of other slow connections the lane
//! is told, and the leader has another thread serve them.
//!
//! Events are edge-triggered: a connection that is being served needs no change of its registration.
//! So whoever serves a connection takes all that has come, or says that there is [`Turn::More`].

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::iter;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::scratch::Scratch;
use super::{lock, spawn};
use crate::error::WireError;
use crate::socket::{For, wait_for_any};

const EVENTS: usize = 64;
/// A lane looks so many times in the longest silence for peers that are silent inside a frame.
const SWEEPS: u32 = 8;
/// A thread without a lane ends after so long.
const IDLE: Duration = Duration::from_secs(10);
/// Most threads are of use where there are as many cores.
const MOST_LANES: usize = 8;
/// So many threads stay with slow connections.
const MOST_STAYING: usize = 4;
/// A thread stays until its connection has said nothing for so long.
const STAY: Duration = Duration::from_secs(1);
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
pub(super) trait Served: AsFd + Send + Sync {
    /// Takes in that something has come. `has_ended`: the peer says nothing after it. False: a thread
    /// serves the connection, and looks again. True: the caller has it served.
    fn begin(&self, has_ended: bool) -> bool;

    /// Serves what has come.
    fn serve(&self, scratch: &mut Scratch) -> Turn;

    /// Whether its last turn gave way.
    fn is_slow(&self) -> bool;

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

/// What waits for a thread.
enum Work {
    /// A lane that nobody leads.
    Lead(Arc<Lane>),
    /// A slow connection, which has begun its turn.
    Serve(Arc<Lane>, u64, Arc<dyn Served>),
}

#[derive(Default)]
struct PoolState {
    waiting: VecDeque<Work>,
    num_idle: usize,
    num_staying: usize,
    threads: Vec<JoinHandle<()>>,
}

thread_local! {
    /// The lane that this thread leads.
    static LEADS: RefCell<Option<(Arc<Lane>, Arc<Pool>)>> = const { RefCell::new(None) };
    /// Whether this thread has said that it may wait, since it was asked last.
    static GAVE_WAY: Cell<bool> = const { Cell::new(false) };
}

/// Says that this thread may wait from now on: another one serves the connections that it serves.
pub fn give_way() {
    GAVE_WAY.set(true);
    if let Some((lane, pool)) = LEADS.take() {
        pool.hand_over(Work::Lead(lane));
    }
}

/// Whether this thread gave way since the last call.
pub(super) fn gave_way() -> bool {
    GAVE_WAY.replace(false)
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
    pub(super) fn add(&self, id: u64, connection: Arc<dyn Served>) -> Result<(), WireError> {
        let lane = &self.lanes[(id / 2) as usize % self.lanes.len()];
        lock(&lane.connections).insert(id, connection.clone());
        let data = epoll::EventData::new_u64(id);
        let added = epoll::add(&lane.epoll, connection.as_fd(), data, watched());
        added.map_err(|error| {
            lock(&lane.connections).remove(&id);
            WireError::System(format!("a connection cannot be watched: {error}"))
        })?;
        // Bytes that came with the proof may be in memory already: no event will tell of them.
        let has_ended = false;
        lock(&lane.ready).push_back(Ready { id, has_ended });
        lane.wake();
        if !lane.is_in_use.swap(true, Ordering::SeqCst) {
            self.pool.hand_over(Work::Lead(lane.clone()));
        }
        Ok(())
    }

    /// How many threads stay with a connection.
    #[cfg(test)]
    pub(super) fn num_staying(&self) -> usize {
        lock(&self.pool.state).num_staying
    }

    /// Ends all threads; requests in work are finished.
    pub(super) fn stop(&self) {
        {
            // With the lock: a thread that has looked and does not wait yet would not be woken.
            let _state = lock(&self.pool.state);
            self.pool.stopping.store(true, Ordering::SeqCst);
            self.pool.changed.notify_all();
        }
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
        lock(&self.pool.state).waiting.clear();
        for lane in &self.lanes {
            lock(&lane.connections).clear();
        }
    }
}

impl Pool {
    /// Has another thread do some work. False: none could be started, and whoever is idle next does
    /// it.
    fn hand_over(self: &Arc<Self>, work: Work) -> bool {
        let mut state = lock(&self.state);
        state.waiting.push_back(work);
        if state.num_idle >= state.waiting.len() {
            self.changed.notify_one();
            return true;
        }
        state.threads.retain(|thread| !thread.is_finished());
        let pool = self.clone();
        match spawn("connections", move || pool.work()) {
            Ok(thread) => state.threads.push(thread),
            Err(error) => {
                log::warn!("{error}");
                return false;
            }
        }
        true
    }

    fn work(self: &Arc<Self>) {
        let mut scratch = Scratch::default();
        while let Some(work) = self.next_work() {
            match work {
                Work::Lead(lane) => {
                    LEADS.set(Some((lane.clone(), self.clone())));
                    lane.lead(self, &mut scratch);
                }
                Work::Serve(lane, id, connection) => {
                    lane.serve(id, &*connection, self, &mut scratch);
                }
            }
        }
    }

    /// Has a thread stay with a connection, unless too many do so.
    fn begin_to_stay(&self) -> bool {
        let mut state = lock(&self.state);
        let may_stay = state.num_staying < MOST_STAYING;
        state.num_staying += usize::from(may_stay);
        may_stay
    }

    /// Waits for work; `None`: this thread is not needed.
    fn next_work(&self) -> Option<Work> {
        let mut state = lock(&self.state);
        state.num_idle += 1;
        let until = Instant::now() + IDLE;
        let found = loop {
            if self.stopping.load(Ordering::SeqCst) {
                break None;
            }
            if let Some(work) = state.waiting.pop_front() {
                break Some(work);
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

/// The events of a connection of which its lane is told.
fn watched() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET
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
    fn lead(self: &Arc<Self>, pool: &Arc<Pool>, scratch: &mut Scratch) {
        let mut events = Vec::with_capacity(EVENTS);
        while !pool.stopping.load(Ordering::SeqCst) {
            // Those who have more to say come after those who have said something meanwhile.
            for _ in 0..self.num_ready() {
                let Some(ready) = self.next_ready() else {
                    break;
                };
                self.begin(ready, pool, scratch);
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

    /// Serves a connection, or has another thread do so.
    fn begin(
        self: &Arc<Self>,
        Ready { id, has_ended }: Ready,
        pool: &Arc<Pool>,
        scratch: &mut Scratch,
    ) {
        if id == WAKE {
            // It fails only if another thread has read it.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            return;
        }
        let Some(connection) = lock(&self.connections).get(&id).cloned() else {
            return; // it is over
        };
        if !connection.begin(has_ended) {
            return;
        }
        if connection.is_slow() {
            if !pool.hand_over(Work::Serve(self.clone(), id, connection)) {
                give_way(); // this thread is idle, and does both
            }
        } else {
            self.serve(id, &*connection, pool, scratch);
        }
    }

    /// Serves a connection that has begun its turn.
    fn serve(&self, id: u64, connection: &dyn Served, pool: &Pool, scratch: &mut Scratch) {
        let mut turn = connection.serve(scratch);
        let is_free = turn == Turn::Done && !leads();
        if is_free && connection.is_slow() && pool.begin_to_stay() {
            turn = self.stay(id, connection, pool, scratch);
            lock(&pool.state).num_staying -= 1;
        }
        match turn {
            Turn::Done => {}
            Turn::More => {
                let has_ended = false; // it knows if it has
                lock(&self.ready).push_back(Ready { id, has_ended });
            }
            Turn::Over => drop(lock(&self.connections).remove(&id)),
        }
    }

    /// Serves a connection while the lane is not told of it, until it says nothing for a while.
    fn stay(&self, id: u64, connection: &dyn Served, pool: &Pool, scratch: &mut Scratch) -> Turn {
        self.watch(id, connection, epoll::EventFlags::empty());
        while !pool.stopping.load(Ordering::SeqCst)
            && wait_for_any(iter::once((connection, For::Bytes)), STAY).is_ok()
        {
            if !connection.begin(false) {
                break; // the leader had an event of it yet, and another thread serves it
            }
            if connection.serve(scratch) == Turn::Over {
                return Turn::Over;
            }
        }
        // The lane is told at once if something has come in between.
        self.watch(id, connection, watched());
        Turn::Done
    }

    fn watch(&self, id: u64, connection: &dyn Served, flags: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(id);
        let watched = epoll::modify(&self.epoll, connection.as_fd(), data, flags);
        if let Err(error) = watched {
            log::error!("a connection cannot be watched any more: {error}");
            connection.end();
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
