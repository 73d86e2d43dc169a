//! The replicas at the other end of sockets: whom to ask, and how often.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use self::connection::{Connection, text_of};
use self::endpoint::{Endpoint, lock};
use crate::auth;
use crate::error::{ErrorKind, PsError, cause_of};
use crate::frame::{Header, Op, Outgoing};
use crate::socket::{Socket, timed_out};
use crate::synchrony::Protocol;

mod connection;
mod endpoint;
mod frames;
mod requests;

/// One attempt to connect takes no longer, and one to prove the token.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Between attempts, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// A replica may work this long on a checkpoint or scan before it says a word.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(600);

/// What a connection is for. Calls of different lanes run at the same time.
#[derive(Clone, Copy)]
enum Lane {
    Pull = 0,
    Push = 1,
    Control = 2,
}

type Link = Option<Connection>;

/// How a client reaches the replicas.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Names this client in the logs of the replicas.
    pub worker_id: i64,
    /// How long any call may wait for a replica that does not answer.
    pub timeout: Duration,
    /// How long the first connections may take; a replica that moves meanwhile is not followed.
    pub connect_timeout: Duration,
    /// Use the Unix socket of a replica that is on this host.
    pub unix_sockets: bool,
    /// The addresses are those of all replicas of the job, in their order: another replica at the
    /// place of one is refused. If not, whoever is there is meant.
    pub whole_job: bool,
}

/// The replicas of a job, by their addresses.
pub struct Remote {
    endpoints: Vec<Endpoint>,
    /// For each lane a connection to each replica; a lane is locked for the length of a call.
    lanes: [Mutex<Vec<Link>>; 3],
    token: Vec<u8>,
    pub(crate) options: RemoteOptions,
    /// As replica 0 said when the model was declared or asked for, which comes first.
    protocol: OnceLock<Protocol>,
    /// What replicas said that they spent in their stores.
    store_nanos: AtomicU64,
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
        let links = || Mutex::new(addresses.iter().map(|_| None).collect());
        let remote = Self {
            endpoints: addresses
                .iter()
                .map(|address| Endpoint::new(address))
                .collect(),
            lanes: [links(), links(), links()],
            token: token.to_vec(),
            options,
            protocol: OnceLock::new(),
            store_nanos: AtomicU64::new(0),
        };
        let deadline = Instant::now() + remote.options.connect_timeout;
        for lane in [Lane::Pull, Lane::Push] {
            let mut links = lock(&remote.lanes[lane as usize]);
            for (replica, link) in links.iter_mut().enumerate() {
                let connected = remote.persist(replica, deadline, None, || {
                    remote.connected(link, replica, lane, deadline).map(|_| ())
                });
                connected.map_err(|error| error.after(remote.options.connect_timeout))?;
            }
        }
        Ok(remote)
    }

    /// Asks several replicas the same kind of question: sends to all, then reads all answers.
    ///
    /// `receive` may be called again for a replica whose connection was lost half-way.
    fn call<'a>(
        &self,
        lane: Lane,
        replicas: Range<usize>,
        op: Op,
        request: impl Fn(usize) -> Outgoing<'a>,
        mut receive: impl FnMut(usize, &Header, &mut Connection) -> Result<(), PsError>,
    ) -> Result<(), PsError> {
        let deadline = Instant::now() + self.options.timeout;
        let mut links = lock(&self.lanes[lane as usize]);
        let send = |links: &mut Vec<Link>, replica: usize| {
            self.on(
                &mut links[replica],
                replica,
                lane,
                deadline,
                |connection, _| {
                    let request = request(replica);
                    request.check_size()?;
                    connection.send(&request)
                },
            )
        };
        let mut read = |links: &mut Vec<Link>, replica: usize| {
            self.on(
                &mut links[replica],
                replica,
                lane,
                deadline,
                |connection, address| {
                    let header = connection.read_header(op, replica, address)?;
                    if matches!(op, Op::Pull | Op::Push) {
                        self.store_nanos
                            .fetch_add(header.args[3], Ordering::Relaxed);
                    }
                    receive(replica, &header, connection)
                },
            )
        };
        let mut sent: Vec<Result<(), PsError>> = Vec::with_capacity(replicas.len());
        for replica in replicas.clone() {
            sent.push(send(&mut links, replica));
        }
        let mut failed = None;
        for (replica, sent) in replicas.zip(sent) {
            if failed.is_some() {
                // The call has failed; an answer that is still to come must not meet the next.
                if sent.is_ok() {
                    let _ = read(&mut links, replica);
                }
                continue;
            }
            let first = sent.and_then(|()| read(&mut links, replica));
            let answered = self.persist(replica, deadline, Some(first), || {
                send(&mut links, replica)?;
                read(&mut links, replica)
            });
            failed = answered.err();
        }
        failed.map_or(Ok(()), Err)
    }

    /// Tries until it succeeds, fails for good, or the deadline has passed.
    fn persist(
        &self,
        replica: usize,
        deadline: Instant,
        first: Option<Result<(), PsError>>,
        mut attempt: impl FnMut() -> Result<(), PsError>,
    ) -> Result<(), PsError> {
        let endpoint = &self.endpoints[replica];
        let mut pause = FIRST_PAUSE;
        let mut outcome = first.unwrap_or_else(&mut attempt);
        let mut cause = String::new();
        loop {
            let error = match outcome {
                Err(PsError::Connection(error)) => error,
                decided => return decided,
            };
            // What happened earlier says more than that the time was then over.
            if cause.is_empty() || !timed_out(&error) {
                cause = cause_of(&error);
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
        }
    }

    /// Works on a connection, made if need be and dropped unless all is well with it.
    fn on(
        &self,
        link: &mut Link,
        replica: usize,
        lane: Lane,
        deadline: Instant,
        work: impl FnOnce(&mut Connection, &str) -> Result<(), PsError>,
    ) -> Result<(), PsError> {
        let address = self.endpoints[replica].address();
        let connection = self.connected(link, replica, lane, deadline)?;
        let outcome = work(connection, &address).map_err(|error| error.said_by(&address));
        let in_order = match &outcome {
            Ok(()) => true,
            Err(PsError::Remote { kind, .. }) => *kind != ErrorKind::Malformed,
            Err(_) => false,
        };
        if !in_order {
            *link = None;
        }
        outcome
    }

    fn connected<'l>(
        &self,
        link: &'l mut Link,
        replica: usize,
        lane: Lane,
        deadline: Instant,
    ) -> Result<&'l mut Connection, PsError> {
        match link {
            Some(connection) => Ok(connection),
            None => {
                let endpoint = &self.endpoints[replica];
                let connection = self.connect_once(replica, lane, deadline);
                // A stranger may have the port of a replica that died, until the replica moves.
                let known = endpoint.known.load(Ordering::Relaxed);
                let connection = connection.map_err(|error| match error {
                    PsError::Authentication { .. } | PsError::Unavailable { .. } if known => {
                        PsError::Connection(io::Error::other(error.to_string()))
                    }
                    other => other,
                })?;
                endpoint.known.store(true, Ordering::Relaxed);
                Ok(link.insert(connection))
            }
        }
    }

    fn connect_once(
        &self,
        replica: usize,
        lane: Lane,
        deadline: Instant,
    ) -> Result<Connection, PsError> {
        let address = self.endpoints[replica].address();
        let connected = Socket::connect(&address, deadline.min(Instant::now() + CONNECT_TIMEOUT));
        let socket = connected.map_err(|error| {
            if error.kind() == io::ErrorKind::InvalidInput {
                PsError::Invalid(format!("address '{address}', expected host:port ({error})"))
            } else {
                error.into()
            }
        })?;
        let (mut socket, local) = self.greet(socket, replica, &address, deadline)?;
        if self.options.unix_sockets
            && !local.is_empty()
            && let Ok(nearer) = Socket::connect_local(&local)
            && let Ok((nearer, _)) = self.greet(nearer, replica, &address, deadline)
        {
            socket = nearer;
        }
        socket.set_timeout(match lane {
            Lane::Pull | Lane::Push => self.options.timeout,
            Lane::Control => self.options.timeout.max(CONTROL_TIMEOUT),
        })?;
        Ok(Connection::new(socket))
    }

    /// Proves the token on a new socket, which ends when the replica moves.
    fn greet(
        &self,
        socket: Socket,
        replica: usize,
        address: &str,
        deadline: Instant,
    ) -> Result<(Arc<Socket>, Vec<u8>), PsError> {
        let socket = Arc::new(socket);
        if !self.endpoints[replica].register(&socket, address) {
            return Err(io::Error::other("the replica has moved").into());
        }
        let started = Instant::now();
        let deadline = deadline.min(started + HANDSHAKE_TIMEOUT);
        let worker_id = self.options.worker_id;
        let place = (replica as u32, self.endpoints.len() as u32);
        let expected = self.options.whole_job.then_some(place);
        match auth::connect(&socket, &self.token, worker_id, expected, address, deadline) {
            Ok(local) => Ok((socket, local)),
            Err(PsError::Malformed { message, .. }) => Err(PsError::Unavailable {
                replica,
                address: address.to_owned(),
                seconds: started.elapsed().as_secs_f64(),
                cause: message,
            }),
            Err(error) => Err(error),
        }
    }

    fn protocol(&self) -> Protocol {
        self.protocol.get().copied().unwrap_or(Protocol::Direct)
    }

    fn all(&self) -> Range<usize> {
        0..self.endpoints.len()
    }

    /// Asks every replica something that is answered by one text.
    fn texts(&self, op: Op, asked: &str) -> Result<Vec<String>, PsError> {
        let mut texts = vec![String::new(); self.endpoints.len()];
        let request = |_| {
            let request = Outgoing::new(op);
            if asked.is_empty() {
                request
            } else {
                request.text(asked)
            }
        };
        self.call(
            Lane::Control,
            self.all(),
            op,
            request,
            |replica, header, connection| {
                texts[replica] =
                    connection.read_payload(header, |arrays| Ok(text_of(arrays)?.to_owned()))?;
                Ok(())
            },
        )?;
        Ok(texts)
    }

    /// Asks replicas something that is answered by operands alone, in the order of pushes.
    fn operands<'a>(
        &self,
        replicas: Range<usize>,
        op: Op,
        request: impl Fn(usize) -> Outgoing<'a>,
    ) -> Result<Vec<[u64; 4]>, PsError> {
        let first = replicas.start;
        let mut operands = vec![[0; 4]; replicas.len()];
        self.call(
            Lane::Push,
            replicas,
            op,
            request,
            |replica, header, connection| {
                operands[replica - first] = header.args;
                connection.read_arrays(header, &mut [])
            },
        )?;
        Ok(operands)
    }
}
