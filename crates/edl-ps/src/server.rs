//! The server: one [`Store`] behind a socket.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use edl_store::Store;
use edl_wire::handshake::Place;
use edl_wire::op::error;
use edl_wire::service::Service as WireService;
use edl_wire::{Client, Credentials, Handler, Listening, Server, WireError};

use crate::error::PsError;
use crate::far::FarFiles;
use crate::service::Service;
use crate::spans::{Span, Spans};
use crate::synchrony::{Coordinator, Synchrony};

/// Where a store is served, and to whom.
#[derive(Clone, Copy)]
pub struct Door<'a> {
    /// What serves it: a ps replica, or a worker its own copy.
    pub service: &'static WireService,
    /// Where to listen.
    pub host: &'a str,
    /// 0 for one that the system chooses.
    pub port: u16,
    /// The job's.
    pub token: &'a [u8],
    /// What to speak TLS with, on all but the Unix socket.
    pub tls: Option<&'a Arc<Credentials>>,
}

/// A store that is served on a socket.
pub struct PsServer {
    server: Server,
    spans: Arc<Spans>,
}

impl PsServer {
    /// Listens and serves, until stopped or dropped.
    ///
    /// Args: `far` for checkpoints behind URLs. On Linux an abstract Unix socket is served too;
    /// clients learn its name in the handshake and use it when they are on this host.
    ///
    /// # Errors
    /// [`WireError::Bind`] if the port is taken; [`WireError::Invalid`] for an empty token.
    pub fn start(
        store: Arc<Store>,
        door: &Door<'_>,
        synchrony: Synchrony,
        far: Option<Box<dyn FarFiles>>,
    ) -> Result<Self, PsError> {
        let listening = Listening {
            service: door.service,
            place: Place {
                number: store.replica(),
                of: store.num_replicas(),
            },
            host: door.host,
            port: door.port,
            token: door.token,
            tls: door.tls,
        };
        synchrony.bind(&store);
        let spans = Arc::new(Spans::default());
        let replica = Replica {
            spans: spans.clone(),
            coordinator: Coordinator::new(synchrony, store.replica()),
            synchrony,
            store,
            far,
        };
        let server = Server::start(&listening, replica)?;
        Ok(Self { server, spans })
    }

    /// `host:port` as given, with the port that the system chose if 0 was asked for.
    pub fn address(&self) -> &str {
        self.server.address()
    }

    /// Ends every connection and waits for every thread. A request in work is finished first.
    pub fn stop(&self) {
        self.server.stop();
    }

    /// Records what is done for each request from now on, for so many requests at most.
    pub fn record(&self, most: usize) {
        self.spans.record(most);
    }

    /// Ends recording, and returns what was recorded.
    pub fn take_recorded(&self) -> Vec<Span> {
        self.spans.take()
    }
}

/// Clients are told of progress this often at most. Little enough that it fits into a socket for
/// hours, while its client reads the answers of other replicas.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Tells somebody of progress, now and then.
struct Paced<F> {
    tell: F,
    last: Mutex<Instant>,
}

impl<F: Fn()> Paced<F> {
    fn new(tell: F) -> Self {
        Self {
            tell,
            last: Mutex::new(Instant::now()),
        }
    }

    fn tell(&self) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() >= PROGRESS_INTERVAL {
            *last = Instant::now();
            (self.tell)();
        }
    }
}

/// What all connections of a server share.
struct Replica {
    store: Arc<Store>,
    coordinator: Coordinator,
    synchrony: Synchrony,
    far: Option<Box<dyn FarFiles>>,
    spans: Arc<Spans>,
}

impl Handler for Replica {
    fn serve(&self, client: &Client<'_>) -> Result<(), WireError> {
        let protocol = self.synchrony.protocol();
        let mut service = Service::new(
            &self.store,
            &self.coordinator,
            protocol,
            client,
            self.far.as_deref(),
        );
        let mut requests = client.requests()?;
        while let Some(request) = requests.receive()? {
            let reply = request.reply;
            let progress = Paced::new(|| reply.progress());
            let begun = self.spans.begin(&request.header);
            let answered = service.answer(
                &request.header,
                request.payload,
                &|| progress.tell(),
                |answer| reply.send(&answer),
            );
            self.spans.end(begun, client.id());
            match answered {
                Ok(()) => {}
                Err(PsError::Wire(error @ WireError::Connection(_))) => return Err(error),
                Err(error) => {
                    reply.refuse(&error::Response {
                        kind: error.kind(),
                        message: error.to_string(),
                    })?;
                    // What the peer means next cannot be known.
                    if let PsError::Wire(error @ WireError::Malformed { .. }) = error {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    fn lost(&self, client_id: u64) {
        self.coordinator.lost(&self.store, client_id);
    }
}
