//! Reads and writes that do not wait.

use std::io;
use std::os::fd::AsFd;

/// Reads from a socket what has come; `WouldBlock` if nothing has.
pub(crate) fn receive_at_once(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::net::recv(&socket, &mut *bytes, rustix::net::RecvFlags::DONTWAIT) {
            Ok((count, _)) => return Ok(count),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes to a socket what fits into the system's buffer; returns how many bytes.
pub(crate) fn send_at_once(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
    match rustix::net::send(&socket, bytes, flags) {
        Ok(count) => Ok(count),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}
