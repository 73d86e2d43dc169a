//! A client's end of a connection: requests out, answers in.

use std::io::{self, BufReader, IoSlice, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::error::WireError;
use crate::frame::{
    ALIGNMENT, Buffer, ENTRY_BYTES, Element, Entry, HEADER_BYTES, Header, Kind, Outgoing,
    directory_bytes, padded, parse,
};
use crate::half_rows::widen;
use crate::op::{Op, Part, Response, error, progress};
use crate::socket::{For, Socket, wait_for_any};

const READ_BUFFER_BYTES: usize = 16 << 10;

/// The parts of a round are few: one for each worker.
const MAX_PARTS_BYTES: usize = 1 << 20;

struct SocketReader(Arc<Socket>);

impl Read for SocketReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(bytes)
    }
}

/// The place of an array of an answer, and its expected form.
#[derive(Debug)]
pub struct Place<'a> {
    entry: Entry,
    values: &'a mut [f32],
}

impl<'a> Place<'a> {
    /// For rows of a table, which travel as `element` says.
    pub fn rows(table: u32, dim: u32, element: Element, values: &'a mut [f32]) -> Self {
        let count = values.len() as u64 / u64::from(dim.max(1));
        let entry = Entry {
            kind: Kind::Rows,
            element,
            table,
            width: dim,
            count,
        };
        Self { entry, values }
    }

    /// For a range of the dense vector.
    pub fn dense(values: &'a mut [f32]) -> Self {
        Self::vector(Kind::Dense, values)
    }

    /// For a range of the state vector.
    pub fn state(values: &'a mut [f32]) -> Self {
        Self::vector(Kind::State, values)
    }

    fn vector(kind: Kind, values: &'a mut [f32]) -> Self {
        let entry = Entry {
            kind,
            element: kind.element(),
            table: 0,
            width: 1,
            count: values.len() as u64,
        };
        Self { entry, values }
    }

    fn padded_bytes(&self) -> usize {
        padded(self.values.len() * self.entry.element.bytes() as usize)
    }
}

/// A client's end of a connection. After any error but a refusal it is dropped, never used again.
pub struct Connection {
    socket: Arc<Socket>,
    reader: BufReader<SocketReader>,
    sequence: u64,
    /// How much is written of a request of which a part is left.
    written: Option<usize>,
    buffer: Buffer,
    /// Rows of 16-bit floats on their way to their place.
    halves: Vec<u16>,
}

impl Connection {
    /// A connection whose ends have proven the token to each other.
    pub fn new(socket: Arc<Socket>) -> Self {
        Self {
            reader: BufReader::with_capacity(READ_BUFFER_BYTES, SocketReader(socket.clone())),
            socket,
            sequence: 0,
            written: None,
            buffer: Buffer::default(),
            halves: Vec::new(),
        }
    }

    /// Waits until one of the connections can go on, and says for each whether it can: with its
    /// request, of which a part is left, or else with an answer.
    ///
    /// # Errors
    /// Those by which systems say that nothing has come in time.
    pub fn wait_for_any<'c>(
        connections: impl Iterator<Item = &'c Self>,
        longest: Duration,
    ) -> io::Result<Vec<bool>> {
        let connections: Vec<&Self> = connections.collect();
        if connections.iter().any(|connection| connection.has_more()) {
            let has_more = connections.iter().map(|connection| connection.has_more());
            return Ok(has_more.collect());
        }
        let sockets = connections.iter().map(|connection| {
            let awaited = match connection.is_sending() {
                true => For::Room,
                false => For::Bytes,
            };
            (&*connection.socket, awaited)
        });
        wait_for_any(sockets, longest)
    }

    /// Whether some of what has come is not read yet.
    fn has_more(&self) -> bool {
        !self.reader.buffer().is_empty()
    }

    /// Whether a part of a request is left to be sent.
    pub fn is_sending(&self) -> bool {
        self.written.is_some()
    }

    /// Sends a request, or what is left of it.
    ///
    /// # Errors
    /// [`WireError::Invalid`], before anything is sent, for a frame that is too large; a lost
    /// connection.
    pub fn send(&mut self, request: &Outgoing<'_>) -> Result<(), WireError> {
        let start = self.begin(request)?;
        let mut socket = &*self.socket;
        let write = |slices: &[IoSlice<'_>]| socket.write_vectored(slices);
        let written = request.write_from(start, self.sequence, write)?;
        if written < request.frame_bytes() {
            return Err(io::Error::from(io::ErrorKind::WriteZero).into());
        }
        socket.flush()?;
        self.written = None;
        Ok(())
    }

    /// Sends what the system takes now of a request. The next call for the same request goes on
    /// there. True once all is sent.
    ///
    /// # Errors
    /// Those of [`Self::send`].
    pub fn send_at_once(&mut self, request: &Outgoing<'_>) -> Result<bool, WireError> {
        let start = self.begin(request)?;
        let write = |slices: &[IoSlice<'_>]| self.socket.begin_write(slices);
        let written = request.write_from(start, self.sequence, write)?;
        let is_sent = written == request.frame_bytes() && self.socket.flush_at_once()?;
        self.written = (!is_sent).then_some(written);
        Ok(is_sent)
    }

    /// Returns where the rest of a request begins.
    fn begin(&mut self, request: &Outgoing<'_>) -> Result<usize, WireError> {
        if let Some(written) = self.written {
            return Ok(written);
        }
        request.check_size()?;
        self.sequence += 1;
        Ok(0)
    }

    /// Reads the header of an answer to `op`. Other methods read the rest of the answer. Frames of
    /// progress before the answer are skipped: the socket's timeout is a limit of silence.
    ///
    /// # Errors
    /// [`WireError::Refused`] if the server refused; bytes that are no such answer; a lost
    /// connection.
    pub fn read_header(&mut self, op: Op) -> Result<Header, WireError> {
        loop {
            let header = self.read_any_header(op)?;
            if header.op != Op::Progress {
                return Ok(header);
            }
            let progress::Response = self.read_response(&header)?;
        }
    }

    /// The same, of an answer or of progress with it.
    fn read_any_header(&mut self, op: Op) -> Result<Header, WireError> {
        let mut bytes = [0; HEADER_BYTES];
        self.reader.read_exact(&mut bytes)?;
        let header = Header::decode(bytes)?;
        // The server answers sequence 0 when it could not read the request's header.
        if header.sequence != self.sequence && !(header.op == Op::Error && header.sequence == 0) {
            return Err(WireError::malformed(format!(
                "an answer to request {}, expected {}",
                header.sequence, self.sequence
            )));
        }
        if header.op == Op::Error {
            let error::Response { kind, message } = self.read_response(&header)?;
            return Err(WireError::Refused { kind, message });
        }
        if header.op != op && header.op != Op::Progress {
            return Err(WireError::malformed(format!(
                "an answer to {:?}, expected one to {op:?}",
                header.op
            )));
        }
        Ok(header)
    }

    /// Reads an answer as a whole.
    ///
    /// # Errors
    /// Bytes that are no such answer; a lost connection.
    pub fn read_response<R: Response>(&mut self, header: &Header) -> Result<R, WireError> {
        self.buffer
            .read(&mut self.reader, header.payload_bytes as usize)?;
        R::decode(header, &parse(header.num_arrays, self.buffer.bytes())?)
    }

    /// Reads a payload whose arrays are known beforehand straight into their places.
    pub(crate) fn read_arrays(
        &mut self,
        header: &Header,
        places: &mut [Place<'_>],
    ) -> Result<(), WireError> {
        let arrays = bytes_of(places);
        let directory = directory_bytes(places.len());
        if header.num_arrays as usize != places.len()
            || header.payload_bytes != (directory + arrays) as u64
        {
            return Err(unexpected(header, places.len(), directory + arrays));
        }
        self.buffer.read(&mut self.reader, directory)?;
        let (entries, _) = self.buffer.bytes().as_chunks::<ENTRY_BYTES>();
        expect(entries, places)?;
        self.read_places(places)
    }

    /// The same of a payload that begins with the parts of a round, however many.
    pub(crate) fn read_parts_and_arrays(
        &mut self,
        header: &Header,
        places: &mut [Place<'_>],
    ) -> Result<Vec<Part>, WireError> {
        let known = directory_bytes(1 + places.len()) + bytes_of(places);
        let parts_bytes = (header.payload_bytes as usize).checked_sub(known);
        let Some(parts_bytes) = parts_bytes.filter(|&bytes| bytes <= MAX_PARTS_BYTES) else {
            return Err(unexpected(header, 1 + places.len(), known));
        };
        if header.num_arrays as usize != 1 + places.len() {
            return Err(unexpected(header, 1 + places.len(), known));
        }
        let directory = directory_bytes(1 + places.len());
        self.buffer.read(&mut self.reader, directory)?;
        let (entries, _) = self.buffer.bytes().as_chunks::<ENTRY_BYTES>();
        let parts = Entry::decode(entries[0])?;
        expect(&entries[1..], places)?;
        let count = parts.count as usize;
        let is_parts = parts.kind == Kind::Parts && parts.width == 4;
        if !is_parts || padded(count.saturating_mul(32)) != parts_bytes {
            return Err(WireError::malformed(format!(
                "an answer with {parts:?}, expected the parts of a round in {parts_bytes} bytes"
            )));
        }
        self.buffer.read(&mut self.reader, parts_bytes)?;
        let parts: &[Part] = bytemuck::cast_slice(&self.buffer.bytes()[..count * 32]);
        let parts = parts.to_vec();
        self.read_places(places)?;
        Ok(parts)
    }

    fn read_places(&mut self, places: &mut [Place<'_>]) -> Result<(), WireError> {
        let mut padding = [0; ALIGNMENT];
        for Place { entry, values } in places {
            let is_half = matches!(entry.element, Element::F16 | Element::Bf16);
            let bytes: &mut [u8] = if is_half {
                self.halves.resize(values.len(), 0);
                bytemuck::cast_slice_mut(&mut self.halves)
            } else {
                bytemuck::cast_slice_mut(values)
            };
            self.reader.read_exact(bytes)?;
            let rest = padded(bytes.len()) - bytes.len();
            if is_half {
                widen(entry.element, &self.halves, values);
            }
            self.reader.read_exact(&mut padding[..rest])?;
        }
        Ok(())
    }
}

fn bytes_of(places: &[Place<'_>]) -> usize {
    places.iter().map(Place::padded_bytes).sum()
}

fn unexpected(header: &Header, num_arrays: usize, bytes: usize) -> WireError {
    WireError::malformed(format!(
        "an answer of {} arrays in {} bytes, expected {num_arrays} in {bytes}",
        header.num_arrays, header.payload_bytes
    ))
}

fn expect(entries: &[[u8; ENTRY_BYTES]], places: &[Place<'_>]) -> Result<(), WireError> {
    for (found, place) in entries.iter().zip(places) {
        let found = Entry::decode(*found)?;
        if found != place.entry {
            return Err(WireError::malformed(format!(
                "an answer with {found:?}, expected {:?}",
                place.entry
            )));
        }
    }
    Ok(())
}
