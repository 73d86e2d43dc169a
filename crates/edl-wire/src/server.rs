//! A server: each connection is proven before its first frame is read, then few threads serve all.
//!
//! A proof has a thread of its own, and there are few at a time. Back-pressure needs no code: a
//! connection has one request at a time in work, and a peer whose next request is not read yet waits
//! in its own write.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use self::connection::{Connection, Known};
use self::door::{Door, Unproven};
use self::lanes::{Lanes, most_lanes};
use crate::error::WireError;
use crate::handshake::{self, Identity, Place};
use crate::service::Service;
use crate::socket::{Listener, Origin, Socket};
use crate::tls::Credentials;

pub use self::lanes::give_way;
pub use self::requests::{Reply, Request};

mod connection;
mod door;
mod lanes;
mod requests;
mod scratch;
#[cfg(test)]
mod tests;

/// A peer has this long to prove that it knows the token.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// After a failed `accept` (no file descriptors, say) the next one waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Inside a frame a peer may be silent for this long.
const FRAME_TIMEOUT: Duration = Duration::from_secs(60);

/// The handler of a server's connections.
pub trait Handler: Send + Sync + 'static {
    /// Begins to serve a connection. `None`: it was served here, to its end.
    ///
    /// A handler that panics ends the process: its changes may be half done, and no other request
    /// may see them.
    ///
    /// # Errors
    /// The errors after which the connection has no use.
    fn open(&self, client: &Client<'_>) -> Result<Option<Box<dyn Session>>, WireError>;

    /// A connection is lost; it is told once for each that was served.
    fn lost(&self, client_id: u64);

    /// Returns the present place among several equal servers, and its layout; `None` if the place
    /// never changes.
    fn place(&self) -> Option<(Place, u16)> {
        None
    }
}

/// One connection of a handler whose requests are frames.
pub trait Session: Send {
    /// Answers a request. What may take long calls [`give_way`] first.
    ///
    /// # Errors
    /// The errors after which the connection has no use.
    fn answer(&mut self, request: &Request<'_>, client: &Client<'_>) -> Result<(), WireError>;
}

/// The address and the place of a server.
#[derive(Clone, Copy, Debug)]
pub struct Listening<'a> {
    /// What it is.
    pub service: &'static Service,
    /// The place among several equal servers.
    pub place: Place,
    /// The address to listen at.
    pub host: &'a str,
    /// 0 for one that the system chooses.
    pub port: u16,
    /// The job's token.
    pub token: &'a [u8],
    /// The TLS credentials for all sockets but the Unix socket.
    pub tls: Option<&'a Arc<Credentials>>,
}

/// A connection that has proven the token.
pub struct Client<'a> {
    socket: &'a Arc<Socket>,
    stopping: &'a AtomicBool,
    id: u64,
    layout: u16,
}

impl Client<'_> {
    /// Tells connections apart.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The layout that its requests are made for.
    pub fn layout(&self) -> u16 {
        self.layout
    }

    /// False once the other end has gone, or the server is to stop.
    pub fn is_there(&self) -> bool {
        !self.stopping.load(Ordering::SeqCst) && self.socket.is_open()
    }

    /// The connection itself, for a service that speaks no frames of [`crate::op`]. It ends when
    /// [`Handler::open`] returns.
    pub fn socket(&self) -> &Arc<Socket> {
        self.socket
    }
}

struct Shared {
    handler: Box<dyn Handler>,
    service: &'static Service,
    place: Place,
    token: Vec<u8>,
    tls: Option<Arc<Credentials>>,
    local_name: String,
    stopping: AtomicBool,
    door: Arc<Door>,
    /// Every open connection, for `stop`; whoever ends it takes it out.
    open: Mutex<HashMap<u64, Arc<Socket>>>,
    /// The threads of connections that are being opened; those that have ended are taken out at the
    /// next accept.
    threads: Mutex<Vec<JoinHandle<()>>>,
    lanes: Lanes,
}

/// A handler behind a socket.
pub struct Server {
    address: String,
    shared: Arc<Shared>,
    listeners: Mutex<Vec<Arc<Listener>>>,
    acceptors: Mutex<Vec<JoinHandle<()>>>,
}

impl Server {
    /// Listens and serves, until stopped or dropped.
    ///
    /// On Linux an abstract Unix socket is served too; clients learn its name in the handshake and
    /// use it when they are on this host.
    ///
    /// # Errors
    /// [`WireError::Bind`] if the port is taken; [`WireError::Invalid`] for an empty token.
    pub fn start(listening: &Listening<'_>, handler: impl Handler) -> Result<Self, WireError> {
        let &Listening {
            service,
            place,
            host,
            port,
            token,
            tls,
        } = listening;
        if token.is_empty() {
            return Err(WireError::Invalid(
                "the token is empty: anybody could join the job; give it random bytes".to_owned(),
            ));
        }
        let (tcp, bound) = Listener::bind(host, port).map_err(|source| WireError::Bind {
            address: join(host, port),
            source,
        })?;
        let mut listeners = vec![Arc::new(tcp)];
        let mut local_name = handshake::local_name(service)?;
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
                handler: Box::new(handler),
                service,
                place,
                token: token.to_vec(),
                tls: tls.cloned(),
                local_name,
                stopping: AtomicBool::new(false),
                door: Arc::new(Door::new()),
                open: Mutex::new(HashMap::new()),
                threads: Mutex::new(Vec::new()),
                lanes: Lanes::new(most_lanes(), FRAME_TIMEOUT)?,
            }),
            listeners: Mutex::new(listeners),
            acceptors: Mutex::new(Vec::new()),
        };
        server.spawn_acceptors()?;
        Ok(server)
    }

    fn spawn_acceptors(&self) -> Result<(), WireError> {
        for listener in &*lock(&self.listeners) {
            let (listener, shared) = (listener.clone(), self.shared.clone());
            let acceptor = spawn("accept", move || accept_all(&listener, &shared))?;
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
        self.shared.lanes.stop();
        let open = std::mem::take(&mut *lock(&self.shared.open));
        open.keys().for_each(|&id| self.shared.handler.lost(id));
    }
}

impl Drop for Server {
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

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, WireError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(|error| WireError::System(format!("no thread for {name}: {error}")))
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
            Ok((socket, origin)) => {
                match secured(shared, socket) {
                    Ok(socket) => begin(shared, next_id, Arc::new(socket), origin),
                    Err(error) => shared.door.turned_away(&origin, &error),
                }
                next_id += 2;
            }
            Err(error) => {
                log::warn!("a connection could not be accepted: {error}");
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn secured(shared: &Shared, socket: Socket) -> Result<Socket, WireError> {
    match &shared.tls {
        Some(credentials) => socket.accepting_tls(credentials, shared.service),
        None => Ok(socket),
    }
}

/// Gives a connection its thread, unless it has no place at the door.
fn begin(shared: &Arc<Shared>, id: u64, socket: Arc<Socket>, origin: Origin) {
    lock(&shared.threads).retain(|thread| !thread.is_finished());
    let Some(unproven) = shared.door.enter(&origin, &socket) else {
        return;
    };
    lock(&shared.open).insert(id, socket.clone());
    let work = {
        let shared = shared.clone();
        move || {
            let connection =
                ending_with_panics(&origin, || open(&shared, &socket, id, &origin, unproven));
            let Some(connection) = connection else {
                return shared.is_over(id, &socket);
            };
            if let Err(error) = shared.lanes.add(id, Arc::new(connection)) {
                log::warn!("a connection was turned away: {error}");
                shared.is_over(id, &socket);
            }
        }
    };
    match spawn("connection", work) {
        Ok(thread) => lock(&shared.threads).push(thread),
        Err(error) => {
            log::warn!("a connection was turned away: {error}");
            lock(&shared.open).remove(&id);
        }
    }
}

impl Shared {
    /// A connection is over.
    fn is_over(&self, id: u64, socket: &Socket) {
        socket.shut_down();
        // `stop` may have told of it already.
        if lock(&self.open).remove(&id).is_some() {
            self.handler.lost(id);
        }
    }
}

/// Does something for a peer; a panic ends the process.
fn ending_with_panics<T>(peer: &Origin, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        log::error!(
            "a request of {peer} failed in the middle, and what it was changing may be half \
             changed: this process ends, and has to be started again"
        );
        std::process::abort()
    })
}

/// Lets a peer prove itself; returns its connection, unless it is over.
fn open(
    shared: &Arc<Shared>,
    socket: &Arc<Socket>,
    id: u64,
    peer: &Origin,
    unproven: Unproven,
) -> Option<Connection> {
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    let (place, layout) = shared.handler.place().unwrap_or((shared.place, 0));
    let identity = Identity {
        place,
        layout,
        local_name: &shared.local_name,
    };
    let proven = handshake::accept(socket, shared.service, &shared.token, identity, deadline);
    drop(unproven);
    let (worker_id, layout) = match proven {
        Ok(proven) => proven,
        Err(WireError::Authentication { .. }) => {
            let why = "it does not know this job's token";
            shared.door.turned_away(peer, &why);
            return None;
        }
        Err(error) => {
            shared.door.turned_away(peer, &error);
            return None;
        }
    };
    log::debug!("worker {worker_id} connected from {peer}");
    let client = Client {
        socket,
        stopping: &shared.stopping,
        id,
        layout,
    };
    let known = Known {
        id,
        layout,
        worker_id,
        peer: peer.clone(),
    };
    let opened = shared.handler.open(&client);
    let opened = opened.and_then(|session| {
        socket.set_timeout(FRAME_TIMEOUT)?;
        Ok(session)
    });
    match opened {
        Ok(Some(session)) => Some(Connection::new(shared, socket, known, session)),
        Ok(None) => {
            known.has_left(shared, Ok(()));
            None
        }
        Err(error) => {
            known.has_left(shared, Err(error));
            None
        }
    }
}
