//! Streams of either family, and the listening ends.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};

use crate::at_once::receive_at_once;
use crate::deadline::{remaining, timed_out};
use crate::error::WireError;
use crate::service::Service;
use crate::tls::{Binding, Credentials, TlsStream};
use crate::traffic;

/// A host that vanished is noticed after this silence and a few unanswered probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// The most slices that Linux takes in one call.
const MAX_SLICES: usize = 1024;

/// Bytes that may be under way in a Unix socket.
const UNIX_SEND_BUFFER_BYTES: usize = 1 << 20;

/// A connected stream; reading and writing need only a shared reference.
#[derive(Debug)]
pub enum Socket {
    /// To anywhere.
    Tcp(TcpStream),
    /// To anywhere, encrypted.
    Tls(Box<TlsStream>),
    /// On this host.
    Unix(UnixStream),
}

impl Socket {
    /// Has a client speak TLS on a TCP stream, to a server of this service; [`Self::secure`] begins.
    ///
    /// # Errors
    /// Certificates that cannot be used.
    pub fn with_tls(self, credentials: &Credentials, to: &Service) -> Result<Self, WireError> {
        match self {
            Self::Tcp(stream) => {
                let stream = TlsStream::client(stream, credentials, to.server_name)?;
                Ok(Self::Tls(Box::new(stream)))
            }
            // Traffic that stays on this host needs no TLS.
            other => Ok(other),
        }
    }

    /// Has a server of this service do so.
    pub(crate) fn accepting_tls(
        self,
        credentials: &Credentials,
        of: &Service,
    ) -> Result<Self, WireError> {
        match self {
            Self::Tcp(stream) => {
                let stream = TlsStream::server(stream, credentials, of.client_names)?;
                Ok(Self::Tls(Box::new(stream)))
            }
            other => Ok(other),
        }
    }

    /// Shakes hands before the deadline, where TLS is spoken.
    ///
    /// # Errors
    /// [`WireError::Tls`] says what is wrong with a certificate.
    pub(crate) fn secure(&self, deadline: Instant) -> Result<(), WireError> {
        match self {
            Self::Tls(stream) => stream.shake_hands(deadline),
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
        }
    }

    /// Returns the value that only the two ends of this TLS session know; `None` without TLS.
    pub(crate) fn binding(&self) -> Option<&Binding> {
        match self {
            Self::Tls(stream) => stream.binding(),
            Self::Tcp(_) | Self::Unix(_) => None,
        }
    }

    /// Connects to `host:port`, trying each address of the host until the deadline.
    pub fn connect(address: &str, deadline: Instant) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for candidate in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&candidate, remaining(deadline)?) {
                Ok(stream) => return Self::from_tcp(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_PROBES);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        Ok(Self::Tcp(stream))
    }

    /// A frame then fits into the socket, as a rule: its sender is not woken in the middle of it.
    ///
    /// TCP is left alone: the kernel fits its buffers to the path, unless they are set.
    fn from_unix(stream: UnixStream) -> Self {
        // A system that allows less gives as much as it allows.
        let _ = SockRef::from(&stream).set_send_buffer_size(UNIX_SEND_BUFFER_BYTES);
        Self::Unix(stream)
    }

    /// Connects to the abstract Unix socket of a server on this host, if it is on this host.
    #[cfg(target_os = "linux")]
    pub fn connect_local(name: &[u8]) -> io::Result<Self> {
        use std::os::linux::net::SocketAddrExt;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        let stream = UnixStream::connect_addr(&address)?;
        // Any process may take a name that is free, and all names can be read by all.
        if !Origin::Unix(user_of(&stream)).may_belong_to_the_job() {
            let why = "a process of another user has taken the name of the Unix socket";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(Self::from_unix(stream))
    }

    /// Abstract Unix sockets are Linux'.
    #[cfg(not(target_os = "linux"))]
    pub fn connect_local(_name: &[u8]) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Lets one read or write wait no longer than this.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        let wait = timeout.max(Duration::from_millis(1));
        let timeout = Some(wait);
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Self::Tls(stream) => stream.set_timeout(wait),
            Self::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }

    /// Ends the connection; a thread that reads or writes it returns at once.
    pub fn shut_down(&self) {
        // It fails only if the peer has ended the connection already.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Tls(stream) => stream.tcp().shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// False once the other end has ended the connection. Reads nothing and does not wait.
    pub fn is_open(&self) -> bool {
        let mut byte = [std::mem::MaybeUninit::uninit()];
        let socket = match self {
            Self::Tcp(stream) => SockRef::from(stream),
            Self::Tls(stream) => SockRef::from(stream.tcp()),
            Self::Unix(stream) => SockRef::from(stream),
        };
        match socket.recv_with_flags(&mut byte, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
            Ok(count) => count > 0,
            Err(error) => timed_out(&error) || error.kind() == io::ErrorKind::Interrupted,
        }
    }

    /// Writes what fits into the system's buffer now; returns how many bytes. None with TLS.
    pub fn write_at_once(&self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let socket = match self {
            Self::Tcp(stream) => SockRef::from(stream),
            Self::Unix(stream) => SockRef::from(stream),
            // A record that is begun has to be ended.
            Self::Tls(_) => return Ok(0),
        };
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let slices = &slices[..slices.len().min(MAX_SLICES)];
        match socket.send_vectored_with_flags(slices, flags) {
            Ok(count) => {
                traffic::sent(count);
                Ok(count)
            }
            Err(error) if timed_out(&error) || error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// The same, also with TLS: what is encrypted and not sent goes with [`Self::flush_at_once`].
    pub(crate) fn begin_write(&self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let Self::Tls(stream) = self else {
            return self.write_at_once(slices);
        };
        let count = stream.write_at_once(slices)?;
        traffic::sent(count);
        Ok(count)
    }

    /// Sends what the system takes now of that which was written; true once all is sent.
    pub(crate) fn flush_at_once(&self) -> io::Result<bool> {
        match self {
            Self::Tls(stream) => stream.flush_at_once(),
            Self::Tcp(_) | Self::Unix(_) => Ok(true),
        }
    }

    /// Writes some bytes; calls `before_waiting` first if they have to wait for the peer.
    pub(crate) fn write_telling(
        &self,
        slices: &[io::IoSlice<'_>],
        before_waiting: impl FnOnce(),
    ) -> io::Result<usize> {
        if let Self::Tls(stream) = self {
            let count = stream.write(slices, before_waiting)?;
            traffic::sent(count);
            return Ok(count);
        }
        match self.write_at_once(slices)? {
            0 => {
                before_waiting();
                (&mut &*self).write_vectored(slices)
            }
            count => Ok(count),
        }
    }

    /// Reads what has come; `None` if nothing has, 0 bytes at the end. The flag is true if there
    /// was no more to read.
    pub(crate) fn read_at_once(&self, bytes: &mut [u8]) -> io::Result<Option<(usize, bool)>> {
        let read = match self {
            Self::Tcp(stream) => receive_at_once(stream, bytes),
            Self::Unix(stream) => receive_at_once(stream, bytes),
            Self::Tls(stream) => stream.read_at_once(bytes),
        };
        match read {
            Ok(count) => {
                traffic::received(count);
                // A part of a record may be left of which nothing can be read yet.
                let is_drained = count < bytes.len() && !matches!(self, Self::Tls(_));
                Ok(Some((count, is_drained)))
            }
            Err(error) if timed_out(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads exactly `bytes` before the deadline, however slowly they trickle.
    pub fn read_before(&self, bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            self.set_timeout(remaining(deadline)?)?;
            match (&*self).read(&mut bytes[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// What a socket is waited for.
#[derive(Clone, Copy)]
pub(crate) enum For {
    /// Bytes of the peer.
    Bytes,
    /// Room for bytes to it.
    Room,
}

/// Waits until one of the sockets has what it is waited for, and says for each whether it has.
pub(crate) fn wait_for_any<'s, S: AsFd + ?Sized + 's>(
    sockets: impl Iterator<Item = (&'s S, For)>,
    longest: Duration,
) -> io::Result<Vec<bool>> {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut polled: Vec<_> = sockets
        .map(|(socket, awaited)| {
            let flags = match awaited {
                For::Bytes => PollFlags::IN,
                For::Room => PollFlags::OUT,
            };
            PollFd::from_borrowed_fd(socket.as_fd(), flags)
        })
        .collect();
    let longest = longest.try_into().map_err(io::Error::other)?;
    while let Err(error) = poll(&mut polled, Some(&longest)) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    let is_ready: Vec<_> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
    match is_ready.contains(&true) {
        true => Ok(is_ready),
        false => Err(io::ErrorKind::TimedOut.into()),
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.tcp().as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = match self {
            Socket::Tcp(stream) => (&*stream).read(bytes),
            Socket::Tls(stream) => stream.read(bytes),
            Socket::Unix(stream) => (&*stream).read(bytes),
        }?;
        traffic::received(count);
        Ok(count)
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = match self {
            Socket::Tcp(stream) => (&*stream).write(bytes),
            Socket::Tls(stream) => stream.write(&[io::IoSlice::new(bytes)], || ()),
            Socket::Unix(stream) => (&*stream).write(bytes),
        }?;
        traffic::sent(count);
        Ok(count)
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let count = match self {
            Socket::Tcp(stream) => (&*stream).write_vectored(slices),
            Socket::Tls(stream) => stream.write(slices, || ()),
            Socket::Unix(stream) => (&*stream).write_vectored(slices),
        }?;
        traffic::sent(count);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Socket::Tls(stream) => stream.flush(),
            Socket::Tcp(_) | Socket::Unix(_) => Ok(()),
        }
    }
}

/// The origin of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An address.
    Tcp(SocketAddr),
    /// A process on this host, of a user if the system says of which.
    Unix(Option<u32>),
}

/// The common key of connections from one origin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// The host with an address.
    Remote(IpAddr),
    /// This one, by its Unix socket.
    Local,
}

impl Origin {
    /// The host that it is on.
    pub fn host(&self) -> Host {
        match self {
            Self::Tcp(address) => Host::Remote(address.ip()),
            Self::Unix(_) => Host::Local,
        }
    }

    /// False for a process of another user, root excepted, on this host.
    pub fn may_belong_to_the_job(&self) -> bool {
        match self {
            Self::Tcp(_) => true,
            Self::Unix(user) => user.is_some_and(|user| user == 0 || user == own_user()),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(Some(user)) => write!(f, "a process of user {user} on this host"),
            Self::Unix(None) => f.write_str("a process on this host"),
        }
    }
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The user of the process at the other end, as the system says.
#[cfg(target_os = "linux")]
fn user_of(stream: &UnixStream) -> Option<u32> {
    let credentials = rustix::net::sockopt::socket_peercred(stream).ok()?;
    Some(credentials.uid.as_raw())
}

/// Only Linux has Unix sockets here.
#[cfg(not(target_os = "linux"))]
fn user_of(_stream: &UnixStream) -> Option<u32> {
    None
}

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// For anybody.
    Tcp(TcpListener),
    /// For those on this host.
    Unix(UnixListener),
}

impl Listener {
    /// Listens at a host's port; returns where, too.
    pub fn bind(host: &str, port: u16) -> io::Result<(Self, SocketAddr)> {
        let listener = TcpListener::bind((host, port))?;
        let address = listener.local_addr()?;
        Ok((Self::Tcp(listener), address))
    }

    /// Listens at an abstract Unix socket: it leaves no file behind, however the process ends.
    #[cfg(target_os = "linux")]
    pub fn bind_local(name: &[u8]) -> io::Result<Self> {
        use std::os::linux::net::SocketAddrExt;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        UnixListener::bind_addr(&address).map(Self::Unix)
    }

    /// Abstract Unix sockets are Linux'.
    #[cfg(not(target_os = "linux"))]
    pub fn bind_local(_name: &[u8]) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Waits for a connection.
    pub fn accept(&self) -> io::Result<(Socket, Origin)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                Ok((Socket::from_tcp(stream)?, Origin::Tcp(peer)))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                let origin = Origin::Unix(user_of(&stream));
                Ok((Socket::from_unix(stream), origin))
            }
        }
    }

    /// Makes `accept` return, now and ever after.
    pub fn shut_down(&self) {
        let shut = match self {
            Self::Tcp(listener) => SockRef::from(listener).shutdown(Shutdown::Both),
            Self::Unix(listener) => SockRef::from(listener).shutdown(Shutdown::Both),
        };
        // If a listener cannot be shut down, one more connection wakes it.
        if let (Err(_), Self::Tcp(listener)) = (shut, self)
            && let Ok(address) = listener.local_addr()
        {
            let _ = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_this_host_only_the_same_user_and_root_may_belong_to_the_job() {
        assert!(Origin::Unix(Some(own_user())).may_belong_to_the_job());
        assert!(Origin::Unix(Some(0)).may_belong_to_the_job());
        assert!(!Origin::Unix(Some(own_user() + 1)).may_belong_to_the_job());
        assert!(!Origin::Unix(None).may_belong_to_the_job());
    }

    #[test]
    fn what_is_sent_and_received_is_counted() {
        let (one, other) = UnixStream::pair().unwrap();
        let (one, other) = (Socket::Unix(one), Socket::Unix(other));
        let (sent, received) = traffic::traffic();
        (&one).write_all(&[0; 1000]).unwrap();
        let slices = [io::IoSlice::new(&[0; 300]), io::IoSlice::new(&[0; 200])];
        assert_eq!((&one).write_vectored(&slices).unwrap(), 500);
        (&other).read_exact(&mut [0; 1500]).unwrap();
        let (sent_since, received_since) = traffic::traffic();
        // Other tests of this process have sockets as well.
        assert!(sent_since - sent >= 1500);
        assert!(received_since - received >= 1500);
    }

    #[test]
    fn what_is_written_at_once_is_what_fits_and_waits_for_nobody() {
        let (one, other) = UnixStream::pair().unwrap();
        let (one, other) = (Socket::Unix(one), Socket::Unix(other));
        let bytes: Vec<u8> = (0..8 << 20).map(|i| (i % 251) as u8).collect();
        let mut written = 0;
        loop {
            let slices = [io::IoSlice::new(&[]), io::IoSlice::new(&bytes[written..])];
            match one.write_at_once(&slices).unwrap() {
                0 => break,
                count => written += count,
            }
        }
        assert!(0 < written && written < bytes.len());
        let mut read = vec![0; written];
        (&other).read_exact(&mut read).unwrap();
        assert_eq!(read, bytes[..written]);
        drop(other);
        assert!(one.write_at_once(&[io::IoSlice::new(&bytes)]).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_says_whose_process_is_at_the_other_end() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(user_of(&one), Some(own_user()));
    }
}
