//! Lets the ranks of a ring watch their neighbours, and says why the ring ends.
//!
//! Each rank has a connection to each neighbour for this alone. The connection carries signs of
//! life, with the number of reductions that each rank has reached, as far as the sender knows. Such
//! news is round the ring soon. So a rank that stands still can be told from a rank that waits for
//! another, and a late rank has a name. A rank that finds out why the ring ends tells both
//! neighbours, and they tell theirs.
//!
//! The reductions themselves know no clock. When the ring ends, their connections are shut down,
//! and a thread that waits at one of them wakes.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use edl_wire::{Socket, timed_out};

use crate::error::RingError;
use crate::message::{Lane, Trouble};
use crate::verdict::{Cause, Verdict};
use crate::world::World;

/// Signs of life are given this often, or four times in the silence that is allowed.
const BEAT: Duration = Duration::from_millis(100);
/// A connection of numbers that fails waits so long for the news of why.
const NEWS_TAKE: Duration = Duration::from_millis(500);

const ALIVE: u16 = 1;
const ENDED: u16 = 2;
const LEAVING: u16 = 3;
const NOBODY: u32 = u32::MAX;

/// The header of a message to a neighbour; after it comes the number of reductions of each rank
/// (u64 each).
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct News {
    kind: u16,
    cause: u16,
    culprit: u32,
    noticed_by: u32,
    size: u32,
}

#[derive(Default)]
struct State {
    verdict: Option<Verdict>,
    /// The neighbours have been told of the verdict.
    is_told: bool,
    /// How many reductions each rank has come to, as far as it is known here.
    begun: Vec<u64>,
    /// After how many reductions each rank has left.
    left_after: Vec<Option<u64>>,
    /// The time at which the running reduction must be over.
    deadline: Option<Instant>,
    is_closing: bool,
}

struct Neighbour {
    lane: Lane,
    /// Held to write.
    writing: Mutex<()>,
}

struct Shared {
    world: u64,
    rank: u32,
    beat: Duration,
    state: Mutex<State>,
    changed: Condvar,
    has_ended: AtomicBool,
    neighbours: Vec<Neighbour>,
    /// Shut down when the ring ends.
    numbers: Vec<Arc<Socket>>,
}

/// The knowledge of a rank about the other ranks of its ring.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What is watched.
pub(crate) struct Watched {
    pub(crate) world: u64,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// A neighbour that says nothing for so long is given up.
    pub(crate) silence: Duration,
    pub(crate) neighbours: Vec<Lane>,
    pub(crate) numbers: Vec<Arc<Socket>>,
}

impl Watch {
    pub(crate) fn start(watched: Watched) -> Result<Self, RingError> {
        let neighbours = watched.neighbours.into_iter().map(|lane| Neighbour {
            lane,
            writing: Mutex::new(()),
        });
        let shared = Arc::new(Shared {
            world: watched.world,
            rank: watched.rank,
            beat: BEAT.min(watched.silence / 4),
            state: Mutex::new(State {
                begun: vec![0; watched.size as usize],
                left_after: vec![None; watched.size as usize],
                ..State::default()
            }),
            changed: Condvar::new(),
            has_ended: AtomicBool::new(false),
            neighbours: neighbours.collect(),
            numbers: watched.numbers,
        });
        let mut watch = Self {
            shared,
            threads: Vec::new(),
        };
        for number in 0..watch.shared.neighbours.len() {
            let socket = &watch.shared.neighbours[number].lane.socket;
            socket
                .set_timeout(watched.silence)
                .map_err(|error| RingError::System(format!("a socket of the ring: {error}")))?;
            let shared = watch.shared.clone();
            watch.spawn(move || shared.listen_to(number))?;
        }
        let shared = watch.shared.clone();
        watch.spawn(move || shared.give_signs())?;
        Ok(watch)
    }

    fn spawn(&mut self, work: impl FnOnce() + Send + 'static) -> Result<(), RingError> {
        let thread = thread::Builder::new().name("ring-watch".to_owned());
        let thread = thread
            .spawn(work)
            .map_err(|error| RingError::System(format!("no thread to watch the ring: {error}")))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Begins a reduction; returns its number.
    pub(crate) fn begin(&self, deadline: Instant) -> Result<u64, RingError> {
        let mut state = self.shared.lock();
        if let Some(verdict) = &state.verdict {
            return Err(self.shared.ended(verdict));
        }
        let rank = self.shared.rank as usize;
        state.begun[rank] += 1;
        state.deadline = Some(deadline);
        let op = state.begun[rank];
        let gone = gone_before(&state.left_after, op);
        drop(state);
        match gone {
            Some(gone) => Err(self.shared.end(gone, Cause::Left, String::new())),
            None => Ok(op),
        }
    }

    /// The reduction is over.
    pub(crate) fn finish(&self) {
        self.shared.lock().deadline = None;
    }

    /// True once the ring has ended: whoever waits gives up.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.has_ended.load(Ordering::Relaxed)
    }

    /// A way to report trouble from another thread.
    pub(crate) fn reporter(&self) -> Reporter {
        Reporter(self.shared.clone())
    }

    /// Why the ring has ended, or does so now, by trouble with a connection.
    pub(crate) fn settle(&self, trouble: Trouble) -> RingError {
        self.shared.settle(trouble)
    }
}

/// Reports trouble.
pub(crate) struct Reporter(Arc<Shared>);

impl Reporter {
    pub(crate) fn settle(&self, trouble: Trouble) -> RingError {
        self.0.settle(trouble)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let is_news = {
            let mut state = self.shared.lock();
            state.is_closing = true;
            state.verdict.is_none()
        };
        self.shared.wait_until_told();
        self.shared.changed.notify_all();
        for neighbour in &self.shared.neighbours {
            if is_news {
                self.shared.tell(neighbour, LEAVING, None);
            }
            neighbour.lane.socket.shut_down();
        }
        self.shared.numbers.iter().for_each(|lane| lane.shut_down());
        for thread in self.threads.drain(..) {
            // A panic was printed where it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// No code panics while it holds the lock half-way through a change.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self, verdict: &Verdict) -> RingError {
        RingError::Ended {
            world: self.world,
            verdict: verdict.clone(),
        }
    }

    /// Ends the ring, by what was noticed here.
    fn end(&self, culprit: Option<u32>, cause: Cause, detail: String) -> RingError {
        self.end_with(Verdict {
            culprit,
            cause,
            noticed_by: self.rank,
            detail,
        })
    }

    /// Ends the ring, unless it has ended: the first verdict stands.
    fn end_with(&self, verdict: Verdict) -> RingError {
        {
            let mut state = self.lock();
            if let Some(first) = &state.verdict {
                return self.ended(first);
            }
            state.verdict = Some(verdict.clone());
        }
        // A neighbour that stands still may take no news: it is told last.
        let is_culprit = |neighbour: &&Neighbour| Some(neighbour.lane.peer) == verdict.culprit;
        for neighbour in self.neighbours.iter().filter(|n| !is_culprit(n)) {
            self.tell(neighbour, ENDED, Some(&verdict));
        }
        self.has_ended.store(true, Ordering::Relaxed);
        self.numbers.iter().for_each(|socket| socket.shut_down());
        self.changed.notify_all();
        for neighbour in self.neighbours.iter().filter(is_culprit) {
            self.tell(neighbour, ENDED, Some(&verdict));
        }
        self.lock().is_told = true;
        self.changed.notify_all();
        self.ended(&verdict)
    }

    /// Waits until another thread has passed on its verdict, also to the rank that the verdict
    /// names. If that rank first saw the end of a connection, it would take this rank for the
    /// cause.
    fn wait_until_told(&self) {
        let is_telling = |state: &mut State| state.verdict.is_some() && !state.is_told;
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), NEWS_TAKE, is_telling);
        drop(waited);
    }

    /// The verdict if there is one soon; else the trouble is its own cause.
    fn settle(&self, trouble: Trouble) -> RingError {
        let (peer, cause, detail) = match trouble {
            Trouble::Words { peer, words } => {
                return self.end(Some(peer), Cause::Broken, words);
            }
            Trouble::Connection { peer, error } => {
                (Some(peer), Cause::Lost, edl_wire::cause_of(&error))
            }
            Trouble::Ended => (None, Cause::Slow, String::new()),
        };
        let state = self.lock();
        let waited = self
            .changed
            .wait_timeout_while(state, NEWS_TAKE, |state| state.verdict.is_none());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &state.verdict {
            Some(verdict) => self.ended(verdict),
            None => {
                drop(state);
                self.end(peer, cause, detail)
            }
        }
    }

    /// Sends a message to a neighbour. A neighbour that cannot be reached is gone, and is missed
    /// elsewhere.
    fn tell(&self, to: &Neighbour, kind: u16, verdict: Option<&Verdict>) {
        let begun = self.lock().begun.clone();
        let bytes = news(kind, verdict, &begun);
        let _writing = to.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = (&*to.lane.socket).write_all(&bytes) {
            log::debug!("rank {} could not be told: {error}", to.lane.peer);
        }
    }

    /// The thread that gives signs of life, and looks at the clock.
    fn give_signs(&self) {
        loop {
            for neighbour in &self.neighbours {
                self.tell(neighbour, ALIVE, None);
            }
            let state = self.lock();
            let is_over = |state: &State| state.is_closing || state.verdict.is_some();
            let waited = self
                .changed
                .wait_timeout_while(state, self.beat, |state| !is_over(state));
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if is_over(&state) {
                return;
            }
            if state
                .deadline
                .is_some_and(|deadline| deadline <= Instant::now())
            {
                let late = latest(&state.begun, self.rank as usize);
                drop(state);
                let cause = if late.is_some() {
                    Cause::Late
                } else {
                    Cause::Slow
                };
                self.end(late, cause, String::new());
                return;
            }
        }
    }

    /// The thread that listens to a neighbour.
    fn listen_to(&self, number: usize) {
        let Neighbour { lane, .. } = &self.neighbours[number];
        let size = self.lock().begun.len();
        let mut begun = vec![0_u64; size];
        loop {
            let mut news = News::zeroed();
            let mut socket = &*lane.socket;
            let read = socket
                .read_exact(bytemuck::bytes_of_mut(&mut news))
                .and_then(|()| match news.size as usize == size {
                    true => socket.read_exact(bytemuck::cast_slice_mut(&mut begun)),
                    false => Err(std::io::ErrorKind::InvalidData.into()),
                });
            if let Err(error) = read {
                return self.hear_nothing(lane.peer, &error);
            }
            self.hear(lane.peer, &news, &begun);
        }
    }

    fn hear_nothing(&self, peer: u32, error: &std::io::Error) {
        let state = self.lock();
        if state.is_closing || state.left_after[peer as usize].is_some() {
            return;
        }
        drop(state);
        let (cause, detail) = if timed_out(error) {
            (Cause::Silent, String::new())
        } else if error.kind() == std::io::ErrorKind::InvalidData {
            (Cause::Broken, "news of a ring of another size".to_owned())
        } else {
            (Cause::Lost, String::new())
        };
        self.end(Some(peer), cause, detail);
    }

    fn hear(&self, peer: u32, news: &News, begun: &[u64]) {
        let mut state = self.lock();
        for (known, heard) in state.begun.iter_mut().zip(begun) {
            *known = (*known).max(*heard);
        }
        match news.kind {
            LEAVING => {
                state.left_after[peer as usize] = Some(begun[peer as usize]);
                let own = state.begun[self.rank as usize];
                let gone = gone_before(&state.left_after, own);
                drop(state);
                if let Some(gone) = gone {
                    self.end(gone, Cause::Left, String::new());
                }
            }
            ENDED => {
                drop(state);
                let culprit = (news.culprit != NOBODY).then_some(news.culprit);
                self.end_with(Verdict {
                    culprit,
                    cause: Cause::from_code(news.cause).unwrap_or(Cause::Broken),
                    noticed_by: news.noticed_by,
                    detail: String::new(),
                });
            }
            // A sign of life.
            _ => {}
        }
    }
}

fn news(kind: u16, verdict: Option<&Verdict>, begun: &[u64]) -> Vec<u8> {
    let news = News {
        kind,
        cause: verdict.map_or(0, |verdict| verdict.cause as u16),
        culprit: verdict.and_then(|v| v.culprit).unwrap_or(NOBODY),
        noticed_by: verdict.map_or(NOBODY, |verdict| verdict.noticed_by),
        size: begun.len() as u32,
    };
    let mut bytes = bytemuck::bytes_of(&news).to_vec();
    bytes.extend_from_slice(bytemuck::cast_slice(begun));
    bytes
}

/// Tells a neighbour that the ring cannot be formed, without whom.
pub(crate) fn say_absent(mut socket: &Socket, world: &World, absent: u32) {
    let verdict = Verdict {
        culprit: Some(absent),
        cause: Cause::Absent,
        noticed_by: world.rank,
        detail: String::new(),
    };
    let bytes = news(ENDED, Some(&verdict), &vec![0; world.members.len()]);
    if let Err(error) = socket.write_all(&bytes) {
        log::debug!(
            "a neighbour in ring {} could not be told: {error}",
            world.id
        );
    }
}

/// Returns the rank that has left before a reduction; the outer option is `None` if no rank has
/// left.
fn gone_before(left_after: &[Option<u64>], op: u64) -> Option<Option<u32>> {
    let gone = left_after
        .iter()
        .position(|after| after.is_some_and(|after| after < op));
    gone.map(|rank| Some(rank as u32))
}

/// The rank furthest behind this one, the lowest of several; `None` if all have come as far.
fn latest(begun: &[u64], rank: usize) -> Option<u32> {
    let behind = begun.iter().enumerate();
    let (late, _) = behind
        .filter(|(_, ops)| **ops < begun[rank])
        .min_by_key(|(_, ops)| **ops)?;
    Some(late as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_furthest_behind_is_late() {
        assert_eq!(latest(&[5, 5, 5], 0), None);
        assert_eq!(latest(&[5, 4, 3, 3], 0), Some(2));
        assert_eq!(latest(&[4, 5, 5], 0), None);
        assert_eq!(latest(&[4, 5, 5], 2), Some(0));
    }

    #[test]
    fn a_rank_that_left_is_missed_by_later_reductions_only() {
        assert_eq!(gone_before(&[None, Some(3)], 3), None);
        assert_eq!(gone_before(&[None, Some(3)], 4), Some(Some(1)));
    }
}
