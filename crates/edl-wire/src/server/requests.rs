//! A server's end of a connection: requests in, answers out.

use std::io::{BufReader, Read};
use std::time::Duration;

use crate::deadline::timed_out;
use crate::error::WireError;
use crate::frame::{Array, Buffer, HEADER_BYTES, Header, Outgoing, parse};
use crate::op::{Response as _, error, progress};
use crate::socket::Socket;

/// Inside a frame a peer may be silent for this long.
const FRAME_TIMEOUT: Duration = Duration::from_secs(60);
/// Small requests and the start of large ones are read by one system call.
const READ_BUFFER_BYTES: usize = 16 << 10;

/// The requests of one client, one after the other.
pub struct Requests<'s> {
    socket: &'s Socket,
    reader: BufReader<&'s Socket>,
    payload: Buffer,
}

/// One request, in the buffer in which it was received.
pub struct Request<'r> {
    /// The header.
    pub header: Header,
    /// Directory and arrays.
    pub payload: &'r [u8],
    /// The place for the answer.
    pub reply: Reply<'r>,
}

/// Sends the answer to one request.
#[derive(Clone, Copy)]
pub struct Reply<'s> {
    socket: &'s Socket,
    sequence: u64,
}

impl<'s> Requests<'s> {
    pub(super) fn new(socket: &'s Socket) -> Result<Self, WireError> {
        socket.set_timeout(FRAME_TIMEOUT)?;
        Ok(Self {
            socket,
            reader: BufReader::with_capacity(READ_BUFFER_BYTES, socket),
            payload: Buffer::default(),
        })
    }

    /// Waits for the next request; `None` once the peer has left.
    ///
    /// # Errors
    /// Bytes that are no frame, which the peer is told; a lost connection.
    pub fn receive(&mut self) -> Result<Option<Request<'_>>, WireError> {
        let Some(header) = read_header(&mut self.reader)? else {
            return Ok(None);
        };
        let reply = |sequence| Reply {
            socket: self.socket,
            sequence,
        };
        let header = match Header::decode(header) {
            Ok(header) => header,
            Err(error) => {
                // The sequence cannot be known.
                reply(0).refuse(&error::Response {
                    kind: error.kind(),
                    message: error.to_string(),
                })?;
                return Err(error);
            }
        };
        self.payload
            .read(&mut self.reader, header.payload_bytes as usize)?;
        Ok(Some(Request {
            header,
            payload: self.payload.bytes(),
            reply: reply(header.sequence),
        }))
    }
}

impl<'r> Request<'r> {
    /// The arrays of its payload.
    ///
    /// # Errors
    /// A directory that does not fit the payload.
    pub fn arrays(&self) -> Result<Vec<Array<'r>>, WireError> {
        parse(self.header.num_arrays, self.payload)
    }
}

impl Reply<'_> {
    /// Sends an answer.
    ///
    /// # Errors
    /// [`WireError::Invalid`], before anything is sent, for a frame that is too large; a lost
    /// connection.
    pub fn send(&self, answer: &Outgoing<'_>) -> Result<(), WireError> {
        answer.check_size()?;
        let mut writer = self.socket;
        Ok(answer.write_to(self.sequence, &mut writer)?)
    }

    /// Says that the answer is being worked on. A client that takes none of it is let go.
    pub fn progress(&self) {
        if self.send(&progress::Response.encode()).is_err() {
            // Half a frame may have been sent.
            self.socket.shut_down();
        }
    }

    /// Sends a refusal.
    ///
    /// # Errors
    /// A lost connection.
    pub fn refuse(&self, refusal: &error::Response) -> Result<(), WireError> {
        self.send(&refusal.encode())
    }
}

/// Reads a header; `None` if the peer has ended the connection between two frames.
fn read_header(reader: &mut impl Read) -> Result<Option<[u8; HEADER_BYTES]>, WireError> {
    let mut header = [0; HEADER_BYTES];
    let mut filled = 0;
    while filled < HEADER_BYTES {
        match reader.read(&mut header[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => {
                return Err(WireError::malformed(format!(
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
