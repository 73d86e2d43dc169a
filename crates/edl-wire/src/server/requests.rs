//! A server's end of a connection: requests in, answers out.

use std::io::{self, IoSlice, Write};

use super::lanes::give_way;
use super::scratch::Scratch;
use crate::error::WireError;
use crate::frame::{Array, Buffer, HEADER_BYTES, Header, Outgoing, parse};
use crate::op::{Response as _, error, progress};
use crate::socket::Socket;

/// To send more may take long, whatever the peer does.
const SMALL_BYTES: u64 = 64 << 10;

/// More than this of one frame is taken while others are served.
const LARGE_BYTES: usize = 256 << 10;

/// What has come of a connection's frames, and was not answered yet.
#[derive(Default)]
pub(super) struct Incoming {
    /// A part of a header, or what came together with the frame before; less than a [`Scratch`].
    before: Vec<u8>,
    /// Of a frame that does not come at once.
    header: Option<Header>,
    payload: Buffer,
    /// The last frame was large. So is the next one as a rule: its arrays are not read together
    /// with its header, but to where they are used.
    after_large: bool,
}

/// The next thing that has come on a connection.
pub(super) enum Received<'r> {
    /// A whole frame; nothing more has come if it `is_last`.
    Frame {
        header: Header,
        payload: &'r [u8],
        is_last: bool,
    },
    /// Nothing whole.
    Nothing,
    /// The peer has ended the connection.
    End,
}

impl Incoming {
    /// Takes what has come, without waiting.
    ///
    /// # Errors
    /// Bytes that are no frame; a lost connection.
    pub(super) fn receive<'r>(
        &'r mut self,
        socket: &Socket,
        scratch: &'r mut Scratch,
    ) -> Result<Received<'r>, WireError> {
        let mut is_drained = false;
        let header = match self.header.take() {
            Some(header) => header,
            None => {
                scratch.begin(&mut self.before);
                let found = scratch.header()?.filter(|(_, is_whole)| *is_whole);
                // Inside a header it reads on: one event tells of these bytes and of their end.
                let (header, is_whole) = match found {
                    Some(found) => found,
                    None => loop {
                        let missing = HEADER_BYTES.saturating_sub(scratch.0.bytes().len());
                        let room = match scratch.0.room() {
                            room if self.after_large && missing > 0 => &mut room[..missing],
                            room => room,
                        };
                        match socket.read_at_once(room)? {
                            None => {
                                self.before.extend_from_slice(scratch.0.bytes());
                                return Ok(Received::Nothing);
                            }
                            Some((0, _)) => return ended(scratch.0.bytes()),
                            Some((count, drained)) => {
                                scratch.0.advance(count);
                                is_drained = drained;
                            }
                        }
                        if let Some(found) = scratch.header()? {
                            break found;
                        }
                    },
                };
                let after = &scratch.0.bytes()[HEADER_BYTES..];
                self.after_large = header.payload_bytes > SMALL_BYTES;
                if is_whole {
                    let (payload, rest) = after.split_at(header.payload_bytes as usize);
                    self.before.extend_from_slice(rest);
                    return Ok(Received::Frame {
                        header,
                        payload,
                        is_last: is_drained && rest.is_empty(),
                    });
                }
                self.payload.begin(header.payload_bytes as usize);
                self.payload.room()[..after.len()].copy_from_slice(after);
                self.payload.advance(after.len());
                header
            }
        };
        let mut taken = 0;
        while !self.payload.is_whole() {
            match socket.read_at_once(self.payload.room())? {
                None => {
                    self.header = Some(header);
                    return Ok(Received::Nothing);
                }
                Some((0, _)) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Some((count, _)) => {
                    self.payload.advance(count);
                    taken += count;
                }
            }
            if taken > LARGE_BYTES {
                give_way();
            }
        }
        Ok(Received::Frame {
            header,
            payload: self.payload.bytes(),
            is_last: false,
        })
    }

    /// Whether a frame has begun and is not whole.
    pub(super) fn is_inside(&self) -> bool {
        self.header.is_some() || !self.before.is_empty()
    }
}

/// The end of a connection after which no frame, or this much of one, has come.
fn ended(begun: &[u8]) -> Result<Received<'_>, WireError> {
    let count = begun.len();
    let words = match count {
        0 => return Ok(Received::End),
        1..HEADER_BYTES => {
            format!("the connection ended inside a header, after {count} of {HEADER_BYTES} bytes")
        }
        _ => "the connection ended inside a frame".to_owned(),
    };
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, words).into())
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

impl<'r> Request<'r> {
    /// The arrays of its payload.
    ///
    /// # Errors
    /// A directory that does not fit the payload.
    pub fn arrays(&self) -> Result<Vec<Array<'r>>, WireError> {
        parse(self.header.num_arrays, self.payload)
    }
}

/// Sends the answer to one request.
#[derive(Clone, Copy)]
pub struct Reply<'s> {
    socket: &'s Socket,
    sequence: u64,
}

impl<'s> Reply<'s> {
    pub(super) fn new(socket: &'s Socket, sequence: u64) -> Self {
        Self { socket, sequence }
    }

    /// Sends an answer.
    ///
    /// # Errors
    /// [`WireError::Invalid`], before anything is sent, for a frame that is too large; a lost
    /// connection.
    pub fn send(&self, answer: &Outgoing<'_>) -> Result<(), WireError> {
        answer.check_size()?;
        if answer.payload_bytes() > SMALL_BYTES {
            give_way();
        }
        Ok(answer.write_to(self.sequence, &mut Sender(self.socket))?)
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

/// Writes at once what the system takes at once, and gives way before it waits for the peer.
struct Sender<'s>(&'s Socket);

impl Write for Sender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_telling(slices, give_way)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
