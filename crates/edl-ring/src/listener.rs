//! Listens for the other ranks; a listener outlives the rings that its rank takes part in.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytemuck::Zeroable;
use edl_wire::handshake::{self, Caller, Place};
use edl_wire::service::RING;
use edl_wire::{
    Client, Credentials, Handler, Listening, Server, Session, Socket, WireError, timed_out,
};

use crate::error::RingError;
use crate::hello::{Hello, Link};

/// A peer that has proven the token says what the connection is for within this time.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// One attempt to connect takes no longer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A rank that cannot be reached is tried again after so long, twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The key of a connection: world, kind, and the rank that made it.
pub(crate) type Key = (u64, Link, u32);

/// A connection that another rank has made.
pub(crate) struct Incoming {
    pub(crate) socket: Arc<Socket>,
    pub(crate) hello: Hello,
    /// The thread that accepted it waits until this is dropped, and then ends the connection.
    pub(crate) held: mpsc::Sender<()>,
}

#[derive(Default)]
struct Parked {
    links: HashMap<Key, Incoming>,
    /// Rings of worlds before this one are over.
    first_world: u64,
    is_closed: bool,
}

#[derive(Default)]
struct Parking {
    parked: Mutex<Parked>,
    arrived: Condvar,
}

impl Parking {
    fn lock(&self) -> MutexGuard<'_, Parked> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a connection until its ring is formed here.
    fn park(&self, link: Link, incoming: Incoming) -> Result<(), WireError> {
        let hello = incoming.hello;
        let mut parked = self.lock();
        if parked.is_closed || hello.world < parked.first_world {
            return Err(WireError::malformed(format!(
                "rank {} looks for ring {}, which is over here",
                hello.from, hello.world
            )));
        }
        parked
            .links
            .insert((hello.world, link, hello.from), incoming);
        self.arrived.notify_all();
        Ok(())
    }
}

struct Door(Arc<Parking>);

impl Handler for Door {
    fn open(&self, client: &Client<'_>) -> Result<Option<Box<dyn Session>>, WireError> {
        let (held, released): (_, Receiver<()>) = mpsc::channel();
        let mut hello = Hello::zeroed();
        let by = Instant::now() + HELLO_TIMEOUT;
        match client
            .socket()
            .read_before(bytemuck::bytes_of_mut(&mut hello), by)
        {
            // It has found the Unix socket, and goes on there.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        let link = hello.link().map_err(WireError::malformed)?;
        let incoming = Incoming {
            socket: client.socket().clone(),
            hello,
            held,
        };
        self.0.park(link, incoming)?;
        // Nothing is ever sent: this waits for the end of the ring.
        let _ = released.recv();
        Ok(None)
    }

    fn lost(&self, _client_id: u64) {}
}

/// Listens for the other ranks, which know this rank by the listener's address.
pub struct RingListener {
    parking: Arc<Parking>,
    pub(crate) token: Vec<u8>,
    pub(crate) tls: Option<Arc<Credentials>>,
    server: Server,
}

impl RingListener {
    /// Listens at a host's port, 0 for one that the system chooses.
    ///
    /// # Errors
    /// A port that is taken; an empty token.
    pub fn start(
        host: &str,
        port: u16,
        token: &[u8],
        tls: Option<&Arc<Credentials>>,
    ) -> Result<Arc<Self>, RingError> {
        let parking = Arc::new(Parking::default());
        let listening = Listening {
            service: &RING,
            place: Place { number: 0, of: 1 },
            host,
            port,
            token,
            tls,
        };
        let server = Server::start(&listening, Door(parking.clone()))?;
        Ok(Arc::new(Self {
            parking,
            token: token.to_vec(),
            tls: tls.cloned(),
            server,
        }))
    }

    /// `host:port`, with the port that the system chose.
    pub fn address(&self) -> &str {
        self.server.address()
    }

    /// Drops what is left of rings before a world; their late connections are refused from now on.
    pub(crate) fn forget_before(&self, world: u64) {
        let mut parked = self.parking.lock();
        parked.first_world = parked.first_world.max(world);
        parked.links.retain(|(of, _, _), _| *of >= world);
    }

    /// Takes a connection that another rank makes; `None` if it has not come by the deadline.
    pub(crate) fn take(&self, wanted: Key, deadline: Instant) -> Option<Incoming> {
        let mut parked = self.parking.lock();
        loop {
            if let Some(incoming) = parked.links.remove(&wanted) {
                return Some(incoming);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.parking.arrived.wait_timeout(parked, left);
            (parked, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Connects to another rank, and says what for. It need not have begun to form the ring.
    pub(crate) fn connect(
        &self,
        address: &str,
        hello: &Hello,
        unix_sockets: bool,
        deadline: Instant,
    ) -> Result<Arc<Socket>, WireError> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.connect_once(address, hello, unix_sockets, deadline) {
                // It may be about to listen.
                Err(WireError::Connection(error))
                    if error.kind() != io::ErrorKind::InvalidInput
                        && Instant::now() + pause < deadline =>
                {
                    log::debug!("{address}: {error}; trying again");
                    thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                other => return other.map(Arc::new),
            }
        }
    }

    fn connect_once(
        &self,
        address: &str,
        hello: &Hello,
        unix_sockets: bool,
        deadline: Instant,
    ) -> Result<Socket, WireError> {
        let socket = Socket::connect(address, deadline.min(Instant::now() + CONNECT_TIMEOUT))?;
        let mut socket = match &self.tls {
            Some(credentials) => socket.with_tls(credentials, &RING)?,
            None => socket,
        };
        let local = self.greet(&socket, hello, address, deadline)?;
        if unix_sockets
            && !local.is_empty()
            && let Ok(nearer) = Socket::connect_local(&local)
            && self.greet(&nearer, hello, address, deadline).is_ok()
        {
            socket = nearer;
        }
        io::Write::write_all(&mut &socket, bytemuck::bytes_of(hello))?;
        Ok(socket)
    }

    fn greet(
        &self,
        socket: &Socket,
        hello: &Hello,
        address: &str,
        deadline: Instant,
    ) -> Result<Vec<u8>, WireError> {
        let caller = Caller {
            layout: 0,
            service: &RING,
            token: &self.token,
            worker_id: i64::from(hello.from),
            expected: None,
        };
        let greeted = handshake::connect(socket, &caller, address, deadline);
        greeted.map_err(|error| match error {
            WireError::Connection(error) if timed_out(&error) => {
                io::Error::new(error.kind(), "it did not shake hands in time").into()
            }
            other => other,
        })
    }
}

impl Drop for RingListener {
    fn drop(&mut self) {
        // The threads of connections that nobody took end before the server waits for them.
        let mut parked = self.parking.lock();
        parked.is_closed = true;
        parked.links.clear();
    }
}
