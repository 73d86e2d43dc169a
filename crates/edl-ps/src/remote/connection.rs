//! One open connection: requests out, replies in.

use std::io::{self, BufReader, Read};
use std::sync::Arc;

use crate::error::{ErrorKind, PsError};
use crate::frame::{
    ALIGNMENT, Array, Buffer, ENTRY_BYTES, Element, Entry, HEADER_BYTES, Header, Op, Outgoing,
    directory_bytes, padded, parse,
};
use crate::half_rows::widen;
use crate::socket::Socket;

const READ_BUFFER_BYTES: usize = 16 << 10;

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
        let directory = directory_bytes(places.len());
        let arrays: usize = places
            .iter()
            .map(|(entry, place)| padded(place.len() * entry.element.bytes() as usize))
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

pub(super) fn text_of<'a>(arrays: &[Array<'a>]) -> Result<&'a str, PsError> {
    match arrays {
        [array] => array.text(),
        _ => Err(PsError::malformed(format!(
            "a reply of {} arrays, expected one text",
            arrays.len()
        ))),
    }
}
