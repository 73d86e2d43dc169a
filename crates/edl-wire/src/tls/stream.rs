//! A TLS session over a TCP stream that one thread reads while another writes.
//!
//! Three locks. `incoming` is held by who reads and `outgoing` by who writes, for as long as the
//! socket makes them wait. `session` has the keys; it is held to encrypt or decrypt what is in
//! memory and never while the socket is waited for. So a writer whose peer takes nothing does not
//! keep a reader from reading, and nobody takes `incoming` and `outgoing` at once but the handshake.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustls::{ClientConnection, Connection, ServerConnection};

use super::credentials::{Credentials, server_name};
use super::words::words;
use crate::at_once::{receive_at_once, send_at_once};
use crate::deadline::{remaining, timed_out};
use crate::error::WireError;

/// Two records, the unit in which TLS encrypts.
const INCOMING_BYTES: usize = 32 << 10;
/// The most bytes that are encrypted at once.
const OUTGOING_BYTES: usize = 64 << 10;
/// A peer has proven nothing before its handshake is over; a long chain of certificates fits.
const MAX_HANDSHAKE_BYTES: usize = 64 << 10;
/// RFC 9266: `tls-exporter`.
const BINDING_LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// The value that only the two ends of one session know.
pub(crate) type Binding = [u8; 32];

/// A TLS session over a TCP stream.
pub struct TlsStream {
    tcp: TcpStream,
    session: Mutex<Connection>,
    incoming: Mutex<Incoming>,
    outgoing: Mutex<Outgoing>,
    /// Set when the handshake is over.
    binding: OnceLock<Binding>,
    /// How long one read may take, in milliseconds; 0 for as long as it likes.
    timeout_millis: AtomicU64,
}

/// The bytes that were received and are not decrypted yet.
#[derive(Default)]
struct Incoming {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

/// The bytes that were encrypted and are not sent yet.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    /// A record may have been sent by half: nothing can follow it.
    is_broken: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TlsStream {
    /// The end that connects, and expects a certificate of this name.
    pub(crate) fn client(
        tcp: TcpStream,
        credentials: &Credentials,
        server: &str,
    ) -> Result<Self, WireError> {
        let config = credentials.client()?;
        let session = server_name(server)
            .and_then(|name| ClientConnection::new(config, name))
            .map_err(|error| WireError::tls(words(&error)))?;
        Ok(Self::new(tcp, Connection::Client(session)))
    }

    /// The end that was connected to, by one of these names.
    pub(crate) fn server(
        tcp: TcpStream,
        credentials: &Credentials,
        clients: &[&str],
    ) -> Result<Self, WireError> {
        let session = ServerConnection::new(credentials.server(clients)?)
            .map_err(|error| WireError::tls(words(&error)))?;
        Ok(Self::new(tcp, Connection::Server(session)))
    }

    fn new(tcp: TcpStream, mut session: Connection) -> Self {
        session.set_buffer_limit(Some(OUTGOING_BYTES));
        Self {
            tcp,
            session: Mutex::new(session),
            incoming: Mutex::default(),
            outgoing: Mutex::default(),
            binding: OnceLock::new(),
            timeout_millis: AtomicU64::new(0),
        }
    }

    /// The stream below.
    pub(crate) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Returns the value that binds the proof of a token to this session; `None` before the
    /// handshake.
    pub(crate) fn binding(&self) -> Option<&Binding> {
        self.binding.get()
    }

    /// Lets one read or write wait no longer than this.
    pub(crate) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        let millis = timeout.as_millis().try_into().unwrap_or(u64::MAX);
        self.timeout_millis.store(millis, Ordering::Relaxed);
        self.set_tcp_timeout(timeout)
    }

    fn set_tcp_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout.max(Duration::from_millis(1)));
        self.tcp.set_read_timeout(timeout)?;
        self.tcp.set_write_timeout(timeout)
    }

    /// Shakes hands before the deadline. Does nothing the second time.
    ///
    /// # Errors
    /// [`WireError::Tls`] with what is wrong with a certificate; a lost connection.
    pub(crate) fn shake_hands(&self, deadline: Instant) -> Result<(), WireError> {
        if self.binding.get().is_some() {
            return Ok(());
        }
        let (mut incoming, mut outgoing) = (lock(&self.incoming), lock(&self.outgoing));
        // No other thread has a use for the session yet.
        let mut session = lock(&self.session);
        let mut received = 0;
        loop {
            encrypted(&mut session, &mut outgoing)?;
            self.set_tcp_timeout(remaining(deadline)?)?;
            self.send(&mut outgoing, || ())?;
            if !session.is_handshaking() {
                break;
            }
            self.set_tcp_timeout(remaining(deadline)?)?;
            let count = incoming.receive(&self.tcp).map_err(no_handshake)?;
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            received += count;
            if received > MAX_HANDSHAKE_BYTES {
                return Err(WireError::tls(format!(
                    "it has sent {received} bytes without an end of the TLS handshake, expected \
                     {MAX_HANDSHAKE_BYTES} at most"
                )));
            }
            while session.is_handshaking() && !incoming.is_empty() {
                if let Err(error) = incoming.feed(&mut session) {
                    // The alert by which the other end learns why.
                    if encrypted(&mut session, &mut outgoing).is_ok() {
                        let _ = self.send(&mut outgoing, || ());
                    }
                    return Err(WireError::tls(words(&error)));
                }
            }
        }
        let binding = session
            .export_keying_material([0; 32], BINDING_LABEL, Some(&[]))
            .map_err(|error| WireError::tls(words(&error)))?;
        let _ = self.binding.set(binding);
        Ok(())
    }

    /// Sends all that is encrypted; holds no lock that a reader needs.
    fn send(&self, outgoing: &mut Outgoing, before_waiting: impl FnOnce()) -> io::Result<()> {
        let sent = send_all(&self.tcp, &outgoing.bytes, before_waiting);
        outgoing.bytes.clear();
        if sent.is_err() {
            outgoing.is_broken = true;
            // It fails only if the peer has ended the connection already.
            let _ = self.tcp.shutdown(Shutdown::Write);
        }
        sent
    }

    /// Reads what is there, or waits for something; 0 bytes at the end.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut incoming = lock(&self.incoming);
        let mut started = None;
        loop {
            if let Some(count) = incoming.decrypt(&mut lock(&self.session), bytes)? {
                return Ok(count);
            }
            // A peer whose record trickles in is as silent as one who says nothing.
            let since = *started.get_or_insert_with(Instant::now);
            let millis = self.timeout_millis.load(Ordering::Relaxed);
            if millis > 0 && since.elapsed() > Duration::from_millis(millis) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // Frames have lengths, so an end without TLS's own word for it is one all the same.
            if incoming.receive(&self.tcp)? == 0 {
                return Ok(0);
            }
        }
    }

    /// Reads what has come; `WouldBlock` if no whole record has.
    pub(crate) fn read_at_once(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut incoming = lock(&self.incoming);
        loop {
            if let Some(count) = incoming.decrypt(&mut lock(&self.session), bytes)? {
                return Ok(count);
            }
            if incoming.take(|into| receive_at_once(&self.tcp, into))? == 0 {
                return Ok(0);
            }
        }
    }

    /// Encrypts and sends a part of the bytes, whose length it returns; calls `before_waiting` first
    /// if they have to wait for the peer.
    pub(crate) fn write(
        &self,
        slices: &[IoSlice<'_>],
        before_waiting: impl FnOnce(),
    ) -> io::Result<usize> {
        let mut outgoing = self.outgoing()?;
        let count = self.encrypt(slices, &mut outgoing)?;
        self.send(&mut outgoing, before_waiting)?;
        Ok(count)
    }

    /// Encrypts a part of the bytes, whose length it returns, once all before them is sent. Sends
    /// what the system takes now; [`Self::flush_at_once`] goes on with the rest.
    pub(crate) fn write_at_once(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut outgoing = self.outgoing()?;
        if !self.send_at_once(&mut outgoing)? {
            return Ok(0);
        }
        let count = self.encrypt(slices, &mut outgoing)?;
        self.send_at_once(&mut outgoing)?;
        Ok(count)
    }

    /// Sends what the system takes now of that which is encrypted; true once all is sent.
    pub(crate) fn flush_at_once(&self) -> io::Result<bool> {
        self.send_at_once(&mut *self.outgoing()?)
    }

    /// Sends all that is encrypted.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.send(&mut *self.outgoing()?, || ())
    }

    fn outgoing(&self) -> io::Result<MutexGuard<'_, Outgoing>> {
        let outgoing = lock(&self.outgoing);
        if outgoing.is_broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(outgoing)
    }

    fn encrypt(&self, slices: &[IoSlice<'_>], outgoing: &mut Outgoing) -> io::Result<usize> {
        let mut session = lock(&self.session);
        let count = session.writer().write_vectored(slices)?;
        encrypted(&mut session, outgoing)?;
        Ok(count)
    }

    fn send_at_once(&self, outgoing: &mut Outgoing) -> io::Result<bool> {
        let sent = send_at_once(&self.tcp, &outgoing.bytes);
        outgoing.is_broken = sent.is_err();
        outgoing.bytes.drain(..sent?);
        Ok(outgoing.bytes.is_empty())
    }
}

fn send_all(mut tcp: &TcpStream, bytes: &[u8], before_waiting: impl FnOnce()) -> io::Result<()> {
    match send_at_once(tcp, bytes)? {
        count if count == bytes.len() => Ok(()),
        count => {
            before_waiting();
            tcp.write_all(&bytes[count..])
        }
    }
}

/// Takes what a session has to send.
fn encrypted(session: &mut Connection, outgoing: &mut Outgoing) -> io::Result<()> {
    while session.wants_write() {
        session.write_tls(&mut outgoing.bytes)?;
    }
    Ok(())
}

fn no_handshake(error: io::Error) -> WireError {
    if timed_out(&error) {
        let hint = "no TLS handshake came in time; is --tls the same in all processes of the job?";
        io::Error::new(io::ErrorKind::TimedOut, hint).into()
    } else {
        error.into()
    }
}

impl Incoming {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Waits for bytes when there are none; 0 at the end of the stream.
    fn receive(&mut self, mut tcp: &TcpStream) -> io::Result<usize> {
        self.take(|into| tcp.read(into))
    }

    fn take(&mut self, mut read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        self.bytes.resize(INCOMING_BYTES, 0);
        loop {
            match read(&mut self.bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(count) => {
                    (self.start, self.end) = (0, count);
                    return Ok(count);
                }
            }
        }
    }

    /// Has the session take some of the bytes.
    fn feed(&mut self, session: &mut Connection) -> Result<(), rustls::Error> {
        let mut rest = &self.bytes[self.start..self.end];
        let read = session.read_tls(&mut rest);
        self.start += read.map_err(|error| rustls::Error::General(error.to_string()))?;
        session.process_new_packets().map(drop)
    }

    /// Decrypts as much as is there and has room; `None` if nothing can be had without waiting.
    fn decrypt(&mut self, session: &mut Connection, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        let mut filled = 0;
        while filled < bytes.len() {
            match session.reader().read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if self.is_empty() => {
                    return Ok((filled > 0).then_some(filled));
                }
                Err(_) => self
                    .feed(session)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?,
            }
        }
        Ok(Some(filled))
    }
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsStream").field(&self.tcp).finish()
    }
}
