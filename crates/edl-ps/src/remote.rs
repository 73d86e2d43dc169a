//! The replicas at the other end of sockets: connections, retries, and who gets which part.

use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use edl_store::{Chunk, ModelSpec, PullMode, TaskAudit, dense_range};

use crate::auth;
use crate::client::Minibatch;
use crate::dedup::{Plan, TablePlan};
use crate::error::{ErrorKind, PsError};
use crate::frame::{
    Array, Buffer, ENTRY_BYTES, Entry, FLAG_CREATE, FLAG_MORE, FLAG_VECTORS, HEADER_BYTES, Header,
    Kind, Op, Outgoing, directory_bytes, padded, parse,
};
use crate::replicas::{Gradients, Replicas, Vectors};
use crate::socket::{Socket, timed_out};

/// One attempt to connect and to prove the token takes no longer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Between attempts, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// A replica may work this long on a checkpoint or scan before it says a word.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(600);
const READ_BUFFER_BYTES: usize = 16 << 10;

/// What a connection is for. Calls of different lanes run at the same time.
#[derive(Clone, Copy)]
enum Lane {
    Pull = 0,
    Push = 1,
    Control = 2,
}

/// Where one replica is, shared by its connections in all lanes.
struct Endpoint {
    place: Mutex<Place>,
    moved: Condvar,
    /// It has answered once: what listens there now may be a stranger who took the port.
    known: AtomicBool,
}

struct Place {
    address: String,
    /// Sockets to this address, to be ended when the replica moves.
    sockets: Vec<Weak<Socket>>,
}

impl Endpoint {
    fn new(address: &str) -> Self {
        Self {
            place: Mutex::new(Place {
                address: address.to_owned(),
                sockets: Vec::new(),
            }),
            moved: Condvar::new(),
            known: AtomicBool::new(false),
        }
    }

    fn address(&self) -> String {
        lock(&self.place).address.clone()
    }

    fn move_to(&self, address: &str) {
        let mut place = lock(&self.place);
        if place.address == address {
            return;
        }
        place.address = address.to_owned();
        for socket in place
            .sockets
            .drain(..)
            .filter_map(|socket| socket.upgrade())
        {
            socket.shut_down();
        }
        self.moved.notify_all();
    }

    /// Lets `move_to` end a socket; false if the replica has moved since it was connected.
    fn register(&self, socket: &Arc<Socket>, address: &str) -> bool {
        let mut place = lock(&self.place);
        place.sockets.retain(|socket| socket.strong_count() > 0);
        place.sockets.push(Arc::downgrade(socket));
        place.address == address
    }

    /// Waits a while, or until the replica has moved away from `address`.
    fn wait(&self, address: &str, pause: Duration) {
        let place = lock(&self.place);
        let moved = |place: &mut Place| place.address == address;
        // Poisoned or not, the wait is over.
        let _ = self.moved.wait_timeout_while(place, pause, moved);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct SocketReader(Arc<Socket>);

impl Read for SocketReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(bytes)
    }
}

/// An open connection. After any error but a refusal it is dropped, never used again.
struct Connection {
    socket: Arc<Socket>,
    reader: BufReader<SocketReader>,
    sequence: u64,
    buffer: Buffer,
}

impl Connection {
    fn new(socket: Arc<Socket>) -> Self {
        Self {
            reader: BufReader::with_capacity(READ_BUFFER_BYTES, SocketReader(socket.clone())),
            socket,
            sequence: 0,
            buffer: Buffer::default(),
        }
    }

    fn send(&mut self, request: &Outgoing<'_>) -> Result<(), PsError> {
        self.sequence += 1;
        Ok(request.write_to(self.sequence, &mut &*self.socket)?)
    }

    /// Reads a reply's header; an error frame becomes its error.
    fn read_header(&mut self, op: Op, replica: usize, address: &str) -> Result<Header, PsError> {
        let mut bytes = [0; HEADER_BYTES];
        self.reader.read_exact(&mut bytes)?;
        let header = Header::decode(bytes)?;
        // The server answers sequence 0 when it could not read the request's header.
        if header.sequence != self.sequence && !(header.op == Op::Error && header.sequence == 0) {
            return Err(PsError::malformed(format!(
                "an answer to request {}, expected {}",
                header.sequence, self.sequence
            )));
        }
        if header.op == Op::Error {
            let message = self.read_payload(&header, |arrays| Ok(text_of(arrays)?.to_owned()))?;
            return Err(PsError::Remote {
                kind: ErrorKind::from_code(header.args[0]),
                replica,
                address: address.to_owned(),
                message,
            });
        }
        if header.op != op {
            return Err(PsError::malformed(format!(
                "an answer to {:?}, expected one to {op:?}",
                header.op
            )));
        }
        Ok(header)
    }

    fn read_payload<T>(
        &mut self,
        header: &Header,
        decode: impl FnOnce(&[Array<'_>]) -> Result<T, PsError>,
    ) -> Result<T, PsError> {
        self.buffer
            .read(&mut self.reader, header.payload_bytes as usize)?;
        decode(&parse(header.num_arrays, self.buffer.bytes())?)
    }

    /// Reads a payload whose arrays are known beforehand straight into their places.
    fn read_arrays(
        &mut self,
        header: &Header,
        places: &mut [(Entry, &mut [f32])],
    ) -> Result<(), PsError> {
        let directory = directory_bytes(places.len());
        let arrays: usize = places
            .iter()
            .map(|(_, place)| padded(size_of_val(&**place)))
            .sum();
        if header.num_arrays as usize != places.len()
            || header.payload_bytes != (directory + arrays) as u64
        {
            return Err(PsError::malformed(format!(
                "a reply of {} arrays in {} bytes, expected {} in {}",
                header.num_arrays,
                header.payload_bytes,
                places.len(),
                directory + arrays
            )));
        }
        self.buffer.read(&mut self.reader, directory)?;
        let (entries, _) = self.buffer.bytes().as_chunks::<ENTRY_BYTES>();
        for (found, (expected, _)) in entries.iter().zip(&*places) {
            let found = Entry::decode(*found)?;
            if found != *expected {
                return Err(PsError::malformed(format!(
                    "a reply with {found:?}, expected {expected:?}"
                )));
            }
        }
        let mut padding = [0; crate::frame::ALIGNMENT];
        for (_, place) in places {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(place);
            self.reader.read_exact(bytes)?;
            let rest = padded(bytes.len()) - bytes.len();
            self.reader.read_exact(&mut padding[..rest])?;
        }
        Ok(())
    }
}

fn text_of<'a>(arrays: &[Array<'a>]) -> Result<&'a str, PsError> {
    match arrays {
        [array] => array.text(),
        _ => Err(PsError::malformed(format!(
            "a reply of {} arrays, expected one text",
            arrays.len()
        ))),
    }
}

type Link = Option<Connection>;

/// The replicas of a job, by their addresses.
pub struct Remote {
    endpoints: Vec<Endpoint>,
    /// For each lane a connection to each replica; a lane is locked for the length of a call.
    lanes: [Mutex<Vec<Link>>; 3],
    token: Vec<u8>,
    worker_id: i64,
    timeout: Duration,
}

impl Remote {
    /// Connects to every replica and proves the token to each.
    ///
    /// Args: `addresses` `host:port` by replica; `timeout` how long any call may wait for a
    /// replica that does not answer.
    ///
    /// # Errors
    /// [`PsError::Authentication`] or [`PsError::Unavailable`], with the address.
    pub fn connect(
        addresses: &[String],
        token: &[u8],
        worker_id: i64,
        timeout: Duration,
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
            worker_id,
            timeout,
        };
        let deadline = Instant::now() + timeout;
        for lane in [Lane::Pull, Lane::Push] {
            let mut links = lock(&remote.lanes[lane as usize]);
            for (replica, link) in links.iter_mut().enumerate() {
                remote.persist(replica, deadline, None, || {
                    remote.connected(link, replica, lane, deadline).map(|_| ())
                })?;
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
        let deadline = Instant::now() + self.timeout;
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
        loop {
            let error = match outcome {
                Err(PsError::Connection(error)) => error,
                decided => return decided,
            };
            let now = Instant::now();
            let address = endpoint.address();
            if now >= deadline {
                return Err(PsError::Unavailable {
                    replica,
                    address,
                    seconds: self.timeout.as_secs_f64(),
                    cause: cause_of(&error),
                });
            }
            log::debug!("ps replica {replica} at {address}: {error}; trying again");
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
        let outcome = work(connection, &address).map_err(|error| error.from_peer(&address));
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
        let endpoint = &self.endpoints[replica];
        let address = endpoint.address();
        let deadline = deadline.min(Instant::now() + ATTEMPT_TIMEOUT);
        let mut socket = Socket::connect(&address, deadline).map_err(|error| {
            if error.kind() == io::ErrorKind::InvalidInput {
                PsError::Invalid(format!("address '{address}', expected host:port ({error})"))
            } else {
                error.into()
            }
        })?;
        let started = Instant::now();
        let local = auth::connect(&socket, &self.token, self.worker_id, &address, deadline);
        let local = local.map_err(|error| match error {
            PsError::Malformed { message, .. } => PsError::Unavailable {
                replica,
                address: address.clone(),
                seconds: started.elapsed().as_secs_f64(),
                cause: message,
            },
            other => other,
        })?;
        if !local.is_empty()
            && let Ok(nearer) = Socket::connect_local(&local)
            && auth::connect(&nearer, &self.token, self.worker_id, &address, deadline).is_ok()
        {
            socket = nearer;
        }
        socket.set_timeout(match lane {
            Lane::Pull | Lane::Push => self.timeout,
            Lane::Control => self.timeout.max(CONTROL_TIMEOUT),
        })?;
        let socket = Arc::new(socket);
        if !endpoint.register(&socket, &address) {
            return Err(io::Error::other("the replica has moved").into());
        }
        Ok(Connection::new(socket))
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

    /// Asks every replica something that is answered by operands alone, in the order of pushes.
    fn operands<'a>(
        &self,
        op: Op,
        request: impl Fn(usize) -> Outgoing<'a>,
    ) -> Result<Vec<[u64; 4]>, PsError> {
        let mut operands = vec![[0; 4]; self.endpoints.len()];
        self.call(
            Lane::Push,
            self.all(),
            op,
            request,
            |replica, header, connection| {
                operands[replica] = header.args;
                connection.read_arrays(header, &mut [])
            },
        )?;
        Ok(operands)
    }
}

fn cause_of(error: &io::Error) -> String {
    if timed_out(error) {
        "no answer came in time".to_owned()
    } else {
        error.to_string()
    }
}

/// Two 32-bit operands in one field: (lower, upper).
fn joined(lower: u32, upper: u32) -> u64 {
    u64::from(lower) | u64::from(upper) << 32
}

fn rows_entry(table: &TablePlan, replica: usize) -> Entry {
    Entry {
        kind: Kind::Rows,
        table: table.table,
        width: table.dim as u32,
        count: table.range(replica).len() as u64,
    }
}

fn vector_entry(kind: Kind, len: usize) -> Entry {
    Entry {
        kind,
        table: 0,
        width: 1,
        count: len as u64,
    }
}

/// Cuts a flat vector, or the place for one, into what each replica holds of it.
fn ranges_of(len: usize, num_replicas: usize) -> impl Fn(usize) -> Range<usize> {
    move |replica| dense_range(len, replica as u32, num_replicas as u32)
}

impl Replicas for Remote {
    fn count(&self) -> usize {
        self.endpoints.len()
    }

    fn declare(&self, model: &ModelSpec, dense: &[f32], state: &[f32]) -> Result<(), PsError> {
        let json = serde_json::to_string(model)
            .map_err(|error| PsError::System(format!("the model cannot be written: {error}")))?;
        let dense_of = ranges_of(dense.len(), self.count());
        let state_of = ranges_of(state.len(), self.count());
        let request = |replica| {
            Outgoing::new(Op::Declare)
                .text(&json)
                .dense(&dense[dense_of(replica)])
                .state(&state[state_of(replica)])
        };
        // One after the other, so that of two workers the same one is first everywhere.
        for replica in self.all() {
            let alone = replica..replica + 1;
            self.call(
                Lane::Control,
                alone,
                Op::Declare,
                request,
                |_, header, connection| connection.read_arrays(header, &mut []),
            )?;
        }
        Ok(())
    }

    fn model(&self) -> Result<Arc<ModelSpec>, PsError> {
        let request = |_| Outgoing::new(Op::Model);
        let mut model = None;
        self.call(
            Lane::Control,
            0..1,
            Op::Model,
            request,
            |_, header, connection| {
                model =
                    Some(connection.read_payload(header, |arrays| {
                        Ok(ModelSpec::from_json(text_of(arrays)?)?)
                    })?);
                Ok(())
            },
        )?;
        let unanswered = || PsError::System("the model was not answered".to_owned());
        model.map(Arc::new).ok_or_else(unanswered)
    }

    fn begin_task(&self, task: u64, lease: u32) -> Result<u32, PsError> {
        let request = |_| Outgoing::new(Op::BeginTask).args([task, u64::from(lease), 0, 0]);
        let next = self.operands(Op::BeginTask, request)?;
        let lowest = next.iter().map(|args| args[0]).min().unwrap_or(0);
        u32::try_from(lowest)
            .map_err(|_| PsError::malformed(format!("a task goes on at minibatch {lowest}")))
    }

    fn pull(
        &self,
        plan: &Plan,
        mode: PullMode,
        rows: &mut [Vec<f32>],
        mut vectors: Option<Vectors<'_>>,
        versions: &mut [u64],
    ) -> Result<(), PsError> {
        let create = if mode == PullMode::Create {
            FLAG_CREATE
        } else {
            0
        };
        let flags = create | if vectors.is_some() { FLAG_VECTORS } else { 0 };
        let request = |replica: usize| {
            let request = Outgoing::new(Op::Pull).flags(flags);
            plan.tables.iter().fold(request, |request, table| {
                request.keys(table.table, &table.keys[table.range(replica)])
            })
        };
        let lens = vectors
            .as_ref()
            .map_or((0, 0), |v| (v.dense.len(), v.state.len()));
        let dense_of = ranges_of(lens.0, self.count());
        let state_of = ranges_of(lens.1, self.count());
        self.call(
            Lane::Pull,
            self.all(),
            Op::Pull,
            request,
            |replica, header, connection| {
                let mut places: Vec<(Entry, &mut [f32])> = plan
                    .tables
                    .iter()
                    .zip(rows.iter_mut())
                    .map(|(table, rows)| {
                        (
                            rows_entry(table, replica),
                            &mut rows[table.row_range(replica)],
                        )
                    })
                    .collect();
                if let Some(vectors) = &mut vectors {
                    let dense = &mut vectors.dense[dense_of(replica)];
                    let state = &mut vectors.state[state_of(replica)];
                    places.push((vector_entry(Kind::Dense, dense.len()), dense));
                    places.push((vector_entry(Kind::State, state.len()), state));
                }
                connection.read_arrays(header, &mut places)?;
                versions[replica] = header.args[0];
                Ok(())
            },
        )
    }

    fn push(
        &self,
        plan: &Plan,
        gradients: &Gradients<'_>,
        minibatch: &Minibatch,
        versions: &[u64],
    ) -> Result<(u64, u64), PsError> {
        let dense_of = ranges_of(gradients.dense.len(), self.count());
        let state_of = ranges_of(gradients.state.len(), self.count());
        let request = |replica: usize| {
            let request = Outgoing::new(Op::Push).args([
                minibatch.task,
                joined(minibatch.lease, minibatch.index),
                joined(minibatch.num_records, minibatch.learning_rate.to_bits()),
                versions[replica],
            ]);
            let tables = plan.tables.iter().zip(gradients.rows);
            tables
                .fold(request, |request, (table, grads)| {
                    request
                        .keys(table.table, &table.keys[table.range(replica)])
                        .rows(
                            table.table,
                            table.dim as u32,
                            &grads[table.row_range(replica)],
                        )
                })
                .dense(&gradients.dense[dense_of(replica)])
                .state(&gradients.state[state_of(replica)])
        };
        let answers = self.operands(Op::Push, request)?;
        let version = answers.first().map_or(0, |args| args[0]);
        Ok((
            version,
            answers.iter().map(|args| args[1]).max().unwrap_or(0),
        ))
    }

    fn skip(&self, task: u64, lease: u32, index: u32) -> Result<(), PsError> {
        let args = [task, u64::from(lease), u64::from(index), 0];
        self.operands(Op::Skip, |_| Outgoing::new(Op::Skip).args(args))
            .map(|_| ())
    }

    fn scan(&self, replica: usize, table: u32, cursor: u64) -> Result<Chunk, PsError> {
        let request = |_| Outgoing::new(Op::Scan).args([u64::from(table), cursor, 0, 0]);
        let mut chunk = Chunk {
            keys: Vec::new(),
            rows: Vec::new(),
            next: None,
        };
        let alone = replica..replica + 1;
        self.call(
            Lane::Control,
            alone,
            Op::Scan,
            request,
            |_, header, connection| {
                let more = header.flags & FLAG_MORE != 0;
                chunk = connection.read_payload(header, |arrays| match arrays {
                    [keys, rows] if keys.entry.count == rows.entry.count => Ok(Chunk {
                        keys: keys.u64s()?.to_vec(),
                        rows: rows.f32s()?.to_vec(),
                        next: more.then_some(header.args[0]),
                    }),
                    _ => Err(PsError::malformed(
                        "a scan without a row for each key".to_owned(),
                    )),
                })?;
                Ok(())
            },
        )?;
        Ok(chunk)
    }

    fn audit(&self) -> Result<Vec<Vec<TaskAudit>>, PsError> {
        let mut audits = vec![Vec::new(); self.count()];
        let request = |_| Outgoing::new(Op::Audit);
        let all = self.all();
        self.call(
            Lane::Control,
            all,
            Op::Audit,
            request,
            |replica, header, connection| {
                audits[replica] = connection.read_payload(header, |arrays| match arrays {
                    [triples] => audit_of(triples.u64s()?),
                    _ => Err(PsError::malformed(
                        "an audit without its triples".to_owned(),
                    )),
                })?;
                Ok(())
            },
        )?;
        Ok(audits)
    }

    fn stats(&self) -> Result<Vec<String>, PsError> {
        self.texts(Op::Stats, "")
    }

    fn checkpoint(&self, directory: &str) -> Result<Vec<String>, PsError> {
        self.texts(Op::Checkpoint, directory)
    }

    fn set_address(&self, replica: usize, address: &str) -> Result<(), PsError> {
        let endpoint = self.endpoints.get(replica).ok_or_else(|| {
            PsError::Invalid(format!("ps replica {replica} of {}", self.endpoints.len()))
        })?;
        endpoint.move_to(address);
        Ok(())
    }
}

fn audit_of(triples: &[u64]) -> Result<Vec<TaskAudit>, PsError> {
    let tasks = triples.as_chunks::<3>().0.iter();
    tasks
        .map(|&[task, next_index, num_records]| {
            let next_index = u32::try_from(next_index).map_err(|_| {
                PsError::malformed(format!("task {task} with {next_index} minibatches"))
            })?;
            Ok(TaskAudit {
                task,
                next_index,
                num_records,
            })
        })
        .collect()
}
