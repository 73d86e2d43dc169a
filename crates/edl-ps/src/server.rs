//! The server: a thread per connection around one [`Store`].
//!
//! Back-pressure needs no code: a connection has one request at a time in work, and a peer whose
//! next request is not read yet waits in its own write.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::{BufReader, Read};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use edl_store::Store;

use crate::auth::{self, Identity};
use crate::error::PsError;
use crate::frame::{Buffer, HEADER_BYTES, Header, Op, Outgoing};
use crate::service::Service;
use crate::socket::{Listener, Socket, timed_out};
use crate::synchrony::{Coordinator, Peer, Synchrony};

/// A peer has this long to prove that it knows the token.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// No more connections than this may be without a proof at one time.
const MAX_UNPROVEN: usize = 64;
/// So many lines are logged of those turned away in each period.
const DOOR_LOG_LINES: u32 = 20;
const DOOR_LOG_PERIOD: Duration = Duration::from_secs(10);
/// Inside a frame a peer may be silent for this long.
const FRAME_TIMEOUT: Duration = Duration::from_secs(60);
/// Small requests and the start of large ones are read by one system call.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// After a failed `accept` (no file descriptors, say) the next one waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

struct Shared {
    store: Arc<Store>,
    coordinator: Coordinator,
    protocol: u64,
    token: Vec<u8>,
    local_name: String,
    stopping: AtomicBool,
    /// Connections that have not proven the token yet.
    unproven: AtomicUsize,
    door_log: DoorLog,
    /// Every open connection, for `stop`; a connection's own thread takes it out.
    open: Mutex<HashMap<u64, Arc<Socket>>>,
    /// The threads of connections; those that have ended are taken out at the next accept.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Lets strangers fill a line of the log, not the disk.
struct DoorLog(Mutex<(Instant, u32)>);

impl DoorLog {
    fn new() -> Self {
        Self(Mutex::new((Instant::now(), 0)))
    }

    fn turned_away(&self, peer: &str, why: &dyn Display) {
        let mut window = lock(&self.0);
        let (since, lines) = &mut *window;
        if since.elapsed() >= DOOR_LOG_PERIOD {
            if *lines > DOOR_LOG_LINES {
                log::warn!(
                    "{} more connections were turned away",
                    *lines - DOOR_LOG_LINES
                );
            }
            (*since, *lines) = (Instant::now(), 0);
        }
        *lines = lines.saturating_add(1);
        if *lines <= DOOR_LOG_LINES {
            log::warn!("{peer} turned away: {why}");
        }
    }
}

/// A store that is served on a socket.
pub struct PsServer {
    address: String,
    shared: Arc<Shared>,
    listeners: Mutex<Vec<Arc<Listener>>>,
    acceptors: Mutex<Vec<JoinHandle<()>>>,
}

impl PsServer {
    /// Listens and serves, until stopped or dropped.
    ///
    /// Args: `port` 0 for one that the system chooses. On Linux an abstract Unix socket is served
    /// too; clients learn its name in the handshake and use it when they are on this host.
    ///
    /// # Errors
    /// [`PsError::Bind`] if the port is taken; [`PsError::Invalid`] for an empty token.
    pub fn start(
        store: Arc<Store>,
        host: &str,
        port: u16,
        token: &[u8],
        synchrony: Synchrony,
    ) -> Result<Self, PsError> {
        if token.is_empty() {
            return Err(PsError::Invalid(
                "the token is empty: anybody could join the job; give it random bytes".to_owned(),
            ));
        }
        let (tcp, bound) = Listener::bind(host, port).map_err(|source| PsError::Bind {
            address: join(host, port),
            source,
        })?;
        let mut listeners = vec![Arc::new(tcp)];
        let mut local_name = auth::local_name()?;
        match Listener::bind_local(local_name.as_bytes()) {
            Ok(local) => listeners.push(Arc::new(local)),
            Err(error) => {
                log::debug!("no Unix socket beside {bound}: {error}");
                local_name.clear();
            }
        }
        let server = Self {
            address: join(host, bound.port()),
            shared: Arc::new(Shared {
                coordinator: Coordinator::new(synchrony, store.replica()),
                protocol: synchrony.code(),
                store,
                token: token.to_vec(),
                local_name,
                stopping: AtomicBool::new(false),
                unproven: AtomicUsize::new(0),
                door_log: DoorLog::new(),
                open: Mutex::new(HashMap::new()),
                threads: Mutex::new(Vec::new()),
            }),
            listeners: Mutex::new(listeners),
            acceptors: Mutex::new(Vec::new()),
        };
        server.spawn_acceptors()?;
        Ok(server)
    }

    fn spawn_acceptors(&self) -> Result<(), PsError> {
        for listener in &*lock(&self.listeners) {
            let (listener, shared) = (listener.clone(), self.shared.clone());
            let acceptor = spawn("ps-accept", move || accept_all(&listener, &shared))?;
            lock(&self.acceptors).push(acceptor);
        }
        Ok(())
    }

    /// `host:port` as given, with the port that the system chose if 0 was asked for.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Ends every connection and waits for every thread. A request in work is finished first.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // The acceptors end; with their listeners the ports are free again.
        let listeners = std::mem::take(&mut *lock(&self.listeners));
        listeners.iter().for_each(|listener| listener.shut_down());
        join_all(&self.acceptors);
        drop(listeners);
        lock(&self.shared.open)
            .values()
            .for_each(|socket| socket.shut_down());
        join_all(&self.shared.threads);
    }
}

impl Drop for PsServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn join(host: &str, port: u16) -> String {
    match host.parse().map(|ip| SocketAddr::new(ip, port)) {
        Ok(address) => address.to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

fn join_all(threads: &Mutex<Vec<JoinHandle<()>>>) {
    let threads = std::mem::take(&mut *lock(threads));
    for thread in threads {
        // A panic was logged where it happened.
        let _ = thread.join();
    }
}

/// No code panics while it holds one of these locks half-way through a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, PsError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(|error| PsError::System(format!("no thread for {name}: {error}")))
}

fn accept_all(listener: &Listener, shared: &Arc<Shared>) {
    let mut next_id = match listener {
        Listener::Tcp(_) => 0,
        Listener::Unix(_) => 1,
    };
    loop {
        let accepted = listener.accept();
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        match accepted {
            Ok((socket, peer)) => {
                begin(shared, next_id, Arc::new(socket), peer);
                next_id += 2;
            }
            Err(error) => {
                log::warn!("a connection could not be accepted: {error}");
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

/// Gives a connection its thread, unless too many strangers are at the door.
fn begin(shared: &Arc<Shared>, id: u64, socket: Arc<Socket>, peer: String) {
    lock(&shared.threads).retain(|thread| !thread.is_finished());
    let Some(unproven) = Unproven::enter(shared) else {
        shared.door_log.turned_away(
            &peer,
            &format_args!("{MAX_UNPROVEN} connections have not proven the token yet"),
        );
        return;
    };
    lock(&shared.open).insert(id, socket.clone());
    let work = {
        let shared = shared.clone();
        move || {
            let served = catch_unwind(AssertUnwindSafe(|| {
                serve(&shared, &socket, id, &peer, unproven);
            }));
            if served.is_err() {
                log::error!("{peer}: its request failed inside this process; connection closed");
            }
            socket.shut_down();
            shared.coordinator.lost(&shared.store, id);
            lock(&shared.open).remove(&id);
        }
    };
    match spawn("ps-connection", work) {
        Ok(thread) => lock(&shared.threads).push(thread),
        Err(error) => {
            log::warn!("a connection was turned away: {error}");
            lock(&shared.open).remove(&id);
        }
    }
}

/// A place among the connections that have not proven the token.
struct Unproven(Arc<Shared>);

impl Unproven {
    fn enter(shared: &Arc<Shared>) -> Option<Self> {
        let entered = shared
            .unproven
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
                (count < MAX_UNPROVEN).then_some(count + 1)
            });
        entered.ok().map(|_| Self(shared.clone()))
    }
}

impl Drop for Unproven {
    fn drop(&mut self) {
        self.0.unproven.fetch_sub(1, Ordering::SeqCst);
    }
}

fn serve(shared: &Shared, socket: &Socket, id: u64, peer: &str, unproven: Unproven) {
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    let identity = Identity {
        replica: shared.store.replica(),
        num_replicas: shared.store.num_replicas(),
        local_name: &shared.local_name,
    };
    let proven = auth::accept(socket, &shared.token, identity, deadline);
    drop(unproven);
    let worker_id = match proven {
        Ok(worker_id) => worker_id,
        Err(PsError::Authentication { .. }) => {
            return shared
                .door_log
                .turned_away(peer, &"it does not know this job's token");
        }
        Err(error) => return shared.door_log.turned_away(peer, &error),
    };
    log::debug!("worker {worker_id} connected from {peer}");
    match answer_all(shared, &Client { shared, socket, id }) {
        Ok(()) => log::debug!("worker {worker_id} at {peer} has left"),
        Err(error) if shared.stopping.load(Ordering::SeqCst) => log::debug!("{peer}: {error}"),
        Err(error) => log::warn!("worker {worker_id} at {peer}: {error}; connection closed"),
    }
}

/// A connection that has proven the token.
struct Client<'a> {
    shared: &'a Shared,
    socket: &'a Socket,
    id: u64,
}

impl Peer for Client<'_> {
    fn id(&self) -> u64 {
        self.id
    }

    fn is_there(&self) -> bool {
        !self.shared.stopping.load(Ordering::SeqCst) && self.socket.is_open()
    }
}

/// Answers requests until the peer leaves.
fn answer_all(shared: &Shared, client: &Client<'_>) -> Result<(), PsError> {
    let socket = client.socket;
    socket.set_timeout(FRAME_TIMEOUT)?;
    let mut reader = BufReader::with_capacity(READ_BUFFER_BYTES, socket);
    let mut payload = Buffer::default();
    let mut service = Service::new(&shared.store, &shared.coordinator, shared.protocol, client);
    while let Some(header) = read_header(&mut reader)? {
        let header = match Header::decode(header) {
            Ok(header) => header,
            Err(error) => return refuse(socket, 0, error),
        };
        payload.read(&mut reader, header.payload_bytes as usize)?;
        let mut writer = socket;
        let answered = service.answer(&header, payload.bytes(), |reply| {
            reply.check_size()?;
            Ok(reply.write_to(header.sequence, &mut writer)?)
        });
        match answered {
            Ok(()) => {}
            Err(error @ PsError::Connection(_)) => return Err(error),
            Err(error @ PsError::Malformed { .. }) => {
                return refuse(socket, header.sequence, error);
            }
            Err(error) => write_error(socket, header.sequence, &error)?,
        }
    }
    Ok(())
}

/// Reads a header; `None` if the peer has ended the connection between two frames.
fn read_header(reader: &mut impl Read) -> Result<Option<[u8; HEADER_BYTES]>, PsError> {
    let mut header = [0; HEADER_BYTES];
    let mut filled = 0;
    while filled < HEADER_BYTES {
        match reader.read(&mut header[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => {
                return Err(PsError::malformed(format!(
                    "the connection ended inside a header, after {filled} of {HEADER_BYTES} bytes"
                )));
            }
            Ok(count) => filled += count,
            // Between two frames a peer may be silent for as long as it likes.
            Err(error) if timed_out(&error) && filled == 0 => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(header))
}

/// Tells the peer why its connection is closed.
fn refuse(socket: &Socket, sequence: u64, error: PsError) -> Result<(), PsError> {
    write_error(socket, sequence, &error)?;
    Err(error)
}

fn write_error(socket: &Socket, sequence: u64, error: &PsError) -> Result<(), PsError> {
    let message = error.to_string();
    let mut writer = socket;
    Outgoing::new(Op::Error)
        .args([error.kind() as u64, 0, 0, 0])
        .text(&message)
        .write_to(sequence, &mut writer)?;
    Ok(())
}
