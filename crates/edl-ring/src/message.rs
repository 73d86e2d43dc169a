//! Numbers on a connection: a header of fixed size, then the numbers as they lie in memory.

use std::io::{self, IoSlice, Read, Write};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use edl_wire::Socket;

/// Numbers of a segment: a few of them fit into a processor's second-level cache.
pub(crate) const SEGMENT_NUMBERS: usize = 64 << 10;
/// The same of bytes.
pub(crate) const SEGMENT_BYTES: usize = SEGMENT_NUMBERS * size_of::<f32>();
/// [`Header::form`] of bytes that all ranks say; `count` is how many each does.
pub(crate) const GATHER: u32 = 1 << 29;
/// [`Header::form`] of bytes that rank 0 gives; `count` and `numbers` are of bytes.
pub(crate) const BROADCAST: u32 = 1 << 30;
/// Reads and writes of numbers wait as long as they have to: the watch ends them.
pub(crate) const NO_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);

/// The header before numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Header {
    /// The number of the reduction in the ring, counted from 1.
    pub(crate) op: u64,
    /// How many numbers the whole vector has.
    pub(crate) count: u64,
    /// The samples of those whose numbers are in it.
    pub(crate) weight: u64,
    /// The form in which numbers travel, and the operation on the sum.
    pub(crate) form: u32,
    pub(crate) block: u32,
    pub(crate) step: u32,
    /// How many numbers follow.
    pub(crate) numbers: u32,
}

impl Header {
    /// In words why a message is not of the same reduction as this rank's.
    pub(crate) fn difference(&self, own: &Self) -> Option<String> {
        let (found, wanted) = (
            (self.op, self.count, self.form),
            (own.op, own.count, own.form),
        );
        (found != wanted).then(|| {
            format!(
                "its reduction {} is of {} numbers in form {}, this rank's {} of {} in form {}; \
                 do all ranks run the same model with the same settings?",
                found.0, found.1, found.2, wanted.0, wanted.1, wanted.2
            )
        })
    }
}

/// Why numbers did not come, or could not be sent.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The connection to a rank failed.
    Connection { peer: u32, error: io::Error },
    /// A rank sent something else.
    Words { peer: u32, words: String },
    /// The ring has ended meanwhile.
    Ended,
}

/// A connection to one rank.
#[derive(Clone)]
pub(crate) struct Lane {
    pub(crate) peer: u32,
    pub(crate) socket: std::sync::Arc<Socket>,
}

impl Lane {
    pub(crate) fn send(&self, header: &Header, numbers: &[u8]) -> Result<(), Trouble> {
        self.send_rest(header, numbers, 0)
    }

    /// Sends what fits now, and does not wait; returns how many bytes of header and numbers.
    pub(crate) fn send_at_once(&self, header: &Header, numbers: &[u8]) -> Result<usize, Trouble> {
        let slices = [
            IoSlice::new(bytemuck::bytes_of(header)),
            IoSlice::new(numbers),
        ];
        self.socket
            .write_at_once(&slices)
            .map_err(|e| self.failed(e))
    }

    /// Sends header and numbers but for the bytes that were sent at once.
    pub(crate) fn send_rest(
        &self,
        header: &Header,
        numbers: &[u8],
        sent: usize,
    ) -> Result<(), Trouble> {
        let header = bytemuck::bytes_of(header);
        write_both(&self.socket, header, numbers, sent).map_err(|e| self.failed(e))
    }

    pub(crate) fn receive_header(&self) -> Result<Header, Trouble> {
        let mut header = Header::zeroed();
        self.receive(bytemuck::bytes_of_mut(&mut header))?;
        Ok(header)
    }

    pub(crate) fn receive(&self, bytes: &mut [u8]) -> Result<(), Trouble> {
        (&mut &*self.socket)
            .read_exact(bytes)
            .map_err(|error| self.failed(error))
    }

    pub(crate) fn broken(&self, words: String) -> Trouble {
        let peer = self.peer;
        Trouble::Words { peer, words }
    }

    fn failed(&self, error: io::Error) -> Trouble {
        let peer = self.peer;
        Trouble::Connection { peer, error }
    }
}

/// Writes two slices from a byte on, in one call where the socket takes them.
fn write_both(
    mut socket: &Socket,
    first: &[u8],
    second: &[u8],
    mut written: usize,
) -> io::Result<()> {
    while written < first.len() {
        let slices = [IoSlice::new(&first[written..]), IoSlice::new(second)];
        match socket.write_vectored(&slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    socket.write_all(&second[written - first.len()..])
}
