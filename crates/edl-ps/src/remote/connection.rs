//! One open connection: requests out, replies in.

use std::io::{self, BufReader, Read};
use std::sync::Arc;

use crate::error::{ErrorKind, PsError};
use crate::frame::{
    ALIGNMENT, Array, Buffer, ENTRY_BYTES, Element, Entry, HEADER_BYTES, Header, Kind, Op,
    Outgoing, directory_bytes, padded, parse,
};
use crate::half_rows::widen;
use crate::socket::Socket;

const READ_BUFFER_BYTES: usize = 16 << 10;

/// The parts of a round are few: one for each worker.
const MAX_PARTS_BYTES: usize = 1 << 20;

struct SocketReader(Arc<Socket>);

impl Read for SocketReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(bytes)
    }
}

/// An open connection. After any error but a refusal it is dropped, never used again.
pub(super) struct Connection {
    socket: Arc<Socket>,
    reader: BufReader<SocketReader>,
    sequence: u64,
    buffer: Buffer,
    /// Rows of 16-bit floats on their way to their place.
    halves: Vec<u16>,
}

impl Connection {
    pub(super) fn new(socket: Arc<Socket>) -> Self {
        Self {
            reader: BufReader::with_capacity(READ_BUFFER_BYTES, SocketReader(socket.clone())),
            socket,
            sequence: 0,
            buffer: Buffer::default(),
            halves: Vec::new(),
        }
    }

    pub(super) fn send(&mut self, request: &Outgoing<'_>) -> Result<(), PsError> {
        self.sequence += 1;
        Ok(request.write_to(self.sequence, &mut &*self.socket)?)
    }

    /// Reads a reply's header; an error frame becomes its error.
    pub(super) fn read_header(
        &mut self,
        op: Op,
        replica: usize,
        address: &str,
    ) -> Result<Header, PsError> {
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

    pub(super) fn read_payload<T>(
        &mut self,
        header: &Header,
        decode: impl FnOnce(&[Array<'_>]) -> Result<T, PsError>,
    ) -> Result<T, PsError> {
        self.buffer
            .read(&mut self.reader, header.payload_bytes as usize)?;
        decode(&parse(header.num_arrays, self.buffer.bytes())?)
    }

    /// Reads a payload whose arrays are known beforehand straight into their places.
    pub(super) fn read_arrays(
        &mut self,
        header: &Header,
        places: &mut [(Entry, &mut [f32])],
    ) -> Result<(), PsError> {
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
    pub(super) fn read_parts_and_arrays(
        &mut self,
        header: &Header,
        places: &mut [(Entry, &mut [f32])],
    ) -> Result<Vec<[u64; 4]>, PsError> {
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
            return Err(PsError::malformed(format!(
                "a reply with {parts:?}, expected the parts of a round in {parts_bytes} bytes"
            )));
        }
        self.buffer.read(&mut self.reader, parts_bytes)?;
        let parts: &[[u64; 4]] = bytemuck::cast_slice(&self.buffer.bytes()[..count * 32]);
        let parts = parts.to_vec();
        self.read_places(places)?;
        Ok(parts)
    }

    fn read_places(&mut self, places: &mut [(Entry, &mut [f32])]) -> Result<(), PsError> {
        let mut padding = [0; ALIGNMENT];
        for (entry, place) in places {
            let is_half = matches!(entry.element, Element::F16 | Element::Bf16);
            let bytes: &mut [u8] = if is_half {
                self.halves.resize(place.len(), 0);
                bytemuck::cast_slice_mut(&mut self.halves)
            } else {
                bytemuck::cast_slice_mut(place)
            };
            self.reader.read_exact(bytes)?;
            let rest = padded(bytes.len()) - bytes.len();
            if is_half {
                widen(entry.element, &self.halves, place);
            }
            self.reader.read_exact(&mut padding[..rest])?;
        }
        Ok(())
    }
}

fn bytes_of(places: &[(Entry, &mut [f32])]) -> usize {
    let bytes =
        |(entry, place): &(Entry, &mut [f32])| padded(place.len() * entry.element.bytes() as usize);
    places.iter().map(bytes).sum()
}

fn unexpected(header: &Header, num_arrays: usize, bytes: usize) -> PsError {
    PsError::malformed(format!(
        "a reply of {} arrays in {} bytes, expected {num_arrays} in {bytes}",
        header.num_arrays, header.payload_bytes
    ))
}

fn expect(entries: &[[u8; ENTRY_BYTES]], places: &[(Entry, &mut [f32])]) -> Result<(), PsError> {
    for (found, (expected, _)) in entries.iter().zip(places) {
        let found = Entry::decode(*found)?;
        if found != *expected {
            return Err(PsError::malformed(format!(
                "a reply with {found:?}, expected {expected:?}"
            )));
        }
    }
    Ok(())
}

pub(super) fn text_of<'a>(arrays: &[Array<'a>]) -> Result<&'a str, PsError> {
    match arrays {
        [array] => array.text(),
        _ => Err(PsError::malformed(format!(
            "a reply of {} arrays, expected one text",
            arrays.len()
        ))),
    }
}
