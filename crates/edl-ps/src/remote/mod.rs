//! The replicas at the other end of sockets: whom to ask, and how often.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, Weak};
use std::time::{Duration, Instant};

use edl_wire::op::model::{self, Protocol};
use edl_wire::service::Service;
use edl_wire::{Connection, Credentials, ErrorKind, WireError, cause_of, timed_out};

use self::endpoint::{Endpoint, lock};
use self::owed::Owed;
use self::questions::{Question, Whole};
use crate::elsewhere::Elsewhere;
use crate::error::PsError;

mod endpoint;
mod exchange;
mod gradients;
mod link;
mod owed;
mod pushed;
mod questions;
mod replicas;
mod sparing;

/// Between attempts, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// The purpose of a connection. Calls of different lanes run at the same time.
#[derive(Clone, Copy)]
enum Lane {
    Pull = 0,
    Push = 1,
    Control = 2,
    /// What replicas are owed, after a moment without a push.
    Marks = 3,
}

type Link = Option<Connection>;

/// Longer than any replica works, on any disk that answers, without showing progress.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(600);

/// The settings with which a client reaches the replicas.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Names this client in the logs of the replicas.
    pub worker_id: i64,
    /// How long any call may wait for a replica that does not answer.
    pub timeout: Duration,
    /// The longest time without progress of a replica that writes a checkpoint or an export. The
    /// whole work may take any time.
    pub silence_timeout: Duration,
    /// How long the first connections may take; a replica that moves meanwhile is not followed.
    pub connect_timeout: Duration,
    /// Use the Unix socket of a replica that is on this host.
    pub unix_sockets: bool,
    /// The addresses are those of all replicas of the job, in their order: another replica at the
    /// place of one is refused. If not, whoever is there is meant.
    pub whole_job: bool,
    /// The layout of which these are the replicas; counts how often their number was another.
    pub layout: u64,
    /// The kind of server: ps replicas, or a worker with a copy of the parameters.
    pub service: &'static Service,
    /// The TLS credentials for all sockets but Unix sockets.
    pub tls: Option<Arc<Credentials>>,
}

/// The replicas of a job, by their addresses.
pub struct Remote {
    endpoints: Vec<Endpoint>,
    /// For each lane a connection to each replica; a lane is locked for the length of a call.
    lanes: [Mutex<Vec<Link>>; 4],
    token: Vec<u8>,
    pub(crate) options: RemoteOptions,
    /// The answer of replica 0 when the model was declared or asked for, which comes first.
    protocol: OnceLock<Protocol>,
    /// The time that replicas have reported for their stores.
    store_nanos: AtomicU64,
    /// Their layout is over: nobody waits for them any more.
    retired: AtomicBool,
    /// The minibatches that replicas have not heard of.
    owed: Arc<Owed>,
    /// Begins the thread that tells them after a moment.
    tells: Once,
    this: OnceLock<Weak<Self>>,
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.owed.close();
    }
}

impl Remote {
    /// Connects to every replica and proves the token to each.
    ///
    /// Args: `addresses` `host:port` by replica.
    ///
    /// # Errors
    /// [`PsError::Authentication`] or [`PsError::Unavailable`], with the address.
    pub fn connect(
        addresses: &[String],
        token: &[u8],
        options: RemoteOptions,
    ) -> Result<Self, PsError> {
        if addresses.is_empty() {
            return Err(PsError::Invalid(
                "no address of a ps replica was given".to_owned(),
            ));
        }
        let remote = Self::unconnected(addresses, token, options);
        let deadline = Instant::now() + remote.options.connect_timeout;
        for lane in [Lane::Pull, Lane::Push] {
            let mut links = lock(&remote.lanes[lane as usize]);
            for (replica, link) in links.iter_mut().enumerate() {
                let first = remote.connected(link, replica, lane, deadline).map(drop);
                let connected = remote.persist(replica, deadline, first, || {
                    remote.connected(link, replica, lane, deadline).map(drop)
                });
                connected.map_err(|error| error.after(remote.options.connect_timeout))?;
            }
        }
        Ok(remote)
    }

    fn unconnected(addresses: &[String], token: &[u8], options: RemoteOptions) -> Self {
        let links = || Mutex::new(addresses.iter().map(|_| None).collect());
        Self {
            endpoints: addresses
                .iter()
                .map(|address| Endpoint::new(address))
                .collect(),
            lanes: [links(), links(), links(), links()],
            token: token.to_vec(),
            options,
            protocol: OnceLock::new(),
            store_nanos: AtomicU64::new(0),
            retired: AtomicBool::new(false),
            owed: Arc::new(Owed::new(addresses.len())),
            tells: Once::new(),
            this: OnceLock::new(),
        }
    }

    /// The replicas of a later layout; they are connected to when they are asked.
    fn of_layout(&self, there: &Elsewhere) -> Self {
        let options = RemoteOptions {
            layout: there.number,
            ..self.options.clone()
        };
        let next = Self::unconnected(&there.addresses, &self.token, options);
        if let Some(&protocol) = self.protocol.get() {
            let _ = next.protocol.set(protocol);
        }
        let nanos = self.store_nanos.load(Ordering::Relaxed);
        next.store_nanos.store(nanos, Ordering::Relaxed);
        for endpoint in &next.endpoints {
            // Part of the job for sure: what else may listen there is a stranger.
            endpoint.known.store(true, Ordering::Relaxed);
        }
        next
    }

    /// Asks several replicas one question: sends to all, then takes the answers as they come.
    fn ask<Q: Question>(&self, replicas: Range<usize>, question: &mut Q) -> Result<(), PsError> {
        let deadline = Instant::now() + self.options.timeout;
        let mut links = lock(&self.lanes[question.lane() as usize]);
        let outcomes = self.ask_once(&mut links, replicas.clone(), question, deadline);
        for (replica, outcome) in replicas.zip(outcomes) {
            let link = &mut links[replica];
            self.persist(replica, deadline, outcome, || {
                self.send(link, replica, question, deadline)?;
                self.take(link, replica, question)
            })?;
        }
        Ok(())
    }

    /// How long a replica may say nothing while it works on a question.
    fn silence(&self, lane: Lane) -> Duration {
        match lane {
            Lane::Pull | Lane::Push | Lane::Marks => self.options.timeout,
            Lane::Control => self.options.silence_timeout,
        }
    }

    /// Names the replica in its errors, and drops a connection that is of no more use.
    fn judged<T>(
        &self,
        link: &mut Link,
        replica: usize,
        outcome: Result<T, PsError>,
    ) -> Result<T, PsError> {
        let error = match outcome {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let address = self.endpoints[replica].address();
        let error = match error {
            PsError::Wire(WireError::Refused { kind, message }) => PsError::Remote {
                kind,
                replica,
                address,
                message,
            },
            PsError::Wire(error) => error.said_by(&address).into(),
            other => other,
        };
        let in_order = match &error {
            PsError::Remote { kind, .. } => *kind != ErrorKind::Malformed,
            _ => false,
        };
        if !in_order {
            *link = None;
        }
        Err(error)
    }

    /// Tries again until it succeeds, fails for good, or the deadline has passed.
    fn persist(
        &self,
        replica: usize,
        deadline: Instant,
        mut outcome: Result<(), PsError>,
        mut attempt: impl FnMut() -> Result<(), PsError>,
    ) -> Result<(), PsError> {
        let endpoint = &self.endpoints[replica];
        let mut pause = FIRST_PAUSE;
        let mut cause = String::new();
        while let Err(PsError::Wire(WireError::Connection(lost))) = outcome {
            // An earlier error tells more than the timeout after it.
            if cause.is_empty() || !timed_out(&lost) {
                cause = cause_of(&lost);
            }
            if self.retired.load(Ordering::Acquire) {
                return Err(PsError::Moved(String::new()));
            }
            let now = Instant::now();
            let address = endpoint.address();
            if now >= deadline {
                return Err(PsError::Unavailable {
                    replica,
                    address,
                    seconds: self.options.timeout.as_secs_f64(),
                    cause,
                });
            }
            log::debug!("ps replica {replica} at {address}: {cause}; trying again");
            endpoint.wait(&address, pause.min(deadline - now));
            pause = (2 * pause).min(LAST_PAUSE);
            outcome = attempt();
            if outcome.is_err() && replica > 0 {
                self.check_layout()?;
            }
        }
        outcome
    }

    /// Asks replica 0 once, which every layout has, whether the layout is over. A replica that has
    /// left cannot say so any more, and a call may wait for it before it asks replica 0.
    fn check_layout(&self) -> Result<(), PsError> {
        // A call in this lane that waits for another replica has asked replica 0 before.
        let Ok(mut links) = self.lanes[Lane::Control as usize].try_lock() else {
            return Ok(());
        };
        let mut question = Whole::new(Lane::Control, &(0..1), |_| model::Request);
        let deadline = Instant::now() + LAST_PAUSE;
        let asked = self.send(&mut links[0], 0, &question, deadline);
        match asked.and_then(|()| self.take(&mut links[0], 0, &mut question)) {
            Err(error) if error.kind() == ErrorKind::Moved => Err(error),
            _ => Ok(()),
        }
    }
}
