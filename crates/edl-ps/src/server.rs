//! The server: one [`Store`] behind a socket.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use edl_store::{Progress, Store};
use edl_wire::Request;
use edl_wire::frame::{Header, Outgoing, parse};
use edl_wire::handshake::Place;
use edl_wire::op::{Op, Request as _, Response as _, Step, error, move_step, take};
use edl_wire::service::Service as WireService;
use edl_wire::{Client, Credentials, Handler, Listening, Server, Session, WireError, give_way};

use crate::error::PsError;
use crate::far::FarFiles;
use crate::moving::{Host, Hosted, Inside, Layout, Served};
use crate::service::{RowBuffers, Service};
use crate::spans::{Span, Spans};
use crate::synchrony::{Coordinator, Synchrony};

/// The address of a server, and its access rules.
#[derive(Clone, Copy)]
pub struct Door<'a> {
    /// The kind of server: a ps replica, or a worker with its own copy.
    pub service: &'static WireService,
    /// Where to listen.
    pub host: &'a str,
    /// 0 for one that the system chooses.
    pub port: u16,
    /// The job's.
    pub token: &'a [u8],
    /// The TLS credentials for all sockets but the Unix socket.
    pub tls: Option<&'a Arc<Credentials>>,
}

/// A store that is served on a socket.
pub struct PsServer {
    server: Server,
    spans: Arc<Spans>,
    hosted: Arc<Hosted>,
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
        Self::start_in(store, door, synchrony, far, 0, false)
    }

    /// Starts a server in a job whose number of replicas has changed.
    ///
    /// `layout` is the number of the store's layout. A server that `awaits_move` serves nothing
    /// until a move has ended.
    ///
    /// # Errors
    /// Those of [`Self::start`].
    pub fn start_in(
        store: Arc<Store>,
        door: &Door<'_>,
        synchrony: Synchrony,
        far: Option<Box<dyn FarFiles>>,
        layout: u64,
        awaits_move: bool,
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
        let coordinator = Coordinator::new(synchrony, store.replica());
        let layout = Layout {
            number: layout,
            replica: store.replica(),
            num_replicas: store.num_replicas(),
        };
        let how = (synchrony, store.modulates(), store.first_lease());
        let host = Host::new((!awaits_move).then_some(store), layout);
        let hosted = Hosted::new(host, coordinator, how, door.token, door.tls);
        let hosted = Arc::new(hosted);
        let replica = Replica {
            spans: spans.clone(),
            hosted: hosted.clone(),
            synchrony,
            far,
        };
        let server = Server::start(&listening, Shared(Arc::new(replica)))?;
        Ok(Self {
            server,
            spans,
            hosted,
        })
    }

    /// `host:port` as given, with the port that the system chose if 0 was asked for.
    pub fn address(&self) -> &str {
        self.server.address()
    }

    /// The store that is served now; `None` if none is, before or after a move.
    pub fn store(&self) -> Option<Arc<Store>> {
        self.hosted.store()
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

/// A request with less keys and rows is answered in a moment.
const SMALL_BYTES: u64 = 64 << 10;

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

/// The data that all connections of a server share.
struct Replica {
    hosted: Arc<Hosted>,
    synchrony: Synchrony,
    far: Option<Box<dyn FarFiles>>,
    spans: Arc<Spans>,
}

/// [`Replica`], for a server and its connections.
struct Shared(Arc<Replica>);

impl Handler for Shared {
    fn open(&self, client: &Client<'_>) -> Result<Option<Box<dyn Session>>, WireError> {
        let layout = u64::from(client.layout());
        Ok(Some(Box::new(OneClient {
            served: self.0.hosted.served(layout, || client.is_there()),
            replica: self.0.clone(),
            layout,
            rows: RowBuffers::default(),
        })))
    }

    fn lost(&self, client_id: u64) {
        self.0.hosted.lost(client_id);
    }

    fn place(&self) -> Option<(Place, u16)> {
        Some(self.0.hosted.place())
    }
}

/// A connection.
struct OneClient {
    replica: Arc<Replica>,
    /// The layout that its requests are made for.
    layout: u64,
    served: Option<Served>,
    rows: RowBuffers,
}

impl Session for OneClient {
    fn answer(&mut self, request: &Request<'_>, client: &Client<'_>) -> Result<(), WireError> {
        let (replica, header, payload) = (&*self.replica, &request.header, request.payload);
        let may_wait = self.served.as_ref().map(|served| served.store.may_wait());
        if takes_long(header) || may_wait == Some(true) {
            give_way();
        }
        let reply = request.reply;
        let paced = Paced::new(|| reply.progress());
        let progress: Progress<'_> = &|| paced.tell();
        let begun = replica.spans.begin(header);
        let send = |answer: Outgoing<'_>| reply.send(&answer);
        let answered = match header.op {
            Op::Move | Op::Take => replica.move_on(header, payload, progress, send),
            op => {
                let current = self.served.as_ref().map(|served| served.layout);
                let entered = replica.entered(op, request, self.layout, current, client);
                match (entered, &self.served) {
                    (Ok(_inside), Some(served)) => {
                        let (store, coordinator) = (&served.store, &served.coordinator);
                        let protocol = replica.synchrony.protocol();
                        let far = replica.far.as_deref();
                        let rows = &mut self.rows;
                        Service::new(store, coordinator, protocol, client, far, rows)
                            .answer(header, payload, progress, send)
                    }
                    (Ok(_), None) => Err(PsError::Moved(String::new())),
                    (Err(error), _) => Err(error),
                }
            }
        };
        replica.spans.end(begun, client.id());
        match answered {
            Ok(()) => Ok(()),
            Err(PsError::Wire(error @ WireError::Connection(_))) => Err(error),
            Err(error) => {
                let message = match &error {
                    PsError::Moved(told) => told.clone(),
                    other => other.to_string(),
                };
                reply.refuse(&error::Response {
                    kind: error.kind(),
                    message,
                })?;
                match error {
                    // The peer's next bytes would have no known meaning.
                    PsError::Wire(error @ WireError::Malformed { .. }) => Err(error),
                    _ => Ok(()),
                }
            }
        }
    }
}

/// Whether an answer may take so long that other connections are not to wait for it.
fn takes_long(header: &Header) -> bool {
    match header.op {
        Op::Pull
        | Op::Push
        | Op::PushEach
        | Op::PushPull
        | Op::Stage
        | Op::Commit
        | Op::CommitPull => header.payload_bytes > SMALL_BYTES,
        Op::BeginTask | Op::EndTask | Op::Skip | Op::Model | Op::Stats => false,
        _ => true,
    }
}

impl Replica {
    /// Waits until a request may be done that is no step of a move.
    fn entered(
        &self,
        op: Op,
        request: &Request<'_>,
        layout: u64,
        current: Option<u64>,
        client: &Client<'_>,
    ) -> Result<Option<Inside<'_>>, PsError> {
        match (op, current) {
            // Asked by the master, about what this replica holds; a move waits for none of them.
            (Op::Audit | Op::Stats | Op::Checkpoint | Op::Expire | Op::Export, Some(current)) => {
                self.hosted.check_current(current).map(|()| None)
            }
            _ => {
                let steps = Step::all_of(&request.header, request.payload)?;
                let updates: Vec<_> = steps.iter().map(|step| (step.task, step.index)).collect();
                let is_there = || client.is_there();
                self.hosted.enter(layout, &updates, is_there).map(Some)
            }
        }
    }

    /// Does a step of a move.
    fn move_on(
        &self,
        header: &Header,
        payload: &[u8],
        progress: Progress<'_>,
        send: impl FnOnce(Outgoing<'_>) -> Result<(), WireError>,
    ) -> Result<(), PsError> {
        let arrays = parse(header.num_arrays, payload)?;
        if header.op == Op::Take {
            let request = take::Request::decode(header, &arrays)?;
            self.hosted.take(&request)?;
            return Ok(send(take::Response.encode())?);
        }
        let request = move_step::Request::decode(header, &arrays)?;
        let told = self
            .hosted
            .step(request.step, self.far.as_deref(), None, progress)?;
        Ok(send(move_step::Response { told }.encode())?)
    }
}
