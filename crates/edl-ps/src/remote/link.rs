//! Connects a client to a replica.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use edl_wire::handshake::{self, Caller, Place};
use edl_wire::{Connection, Socket, WireError};

use super::{Lane, Link, Remote};
use crate::error::PsError;

/// One attempt to connect takes no longer, and one to prove the token.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

impl Remote {
    /// The connection of a lane, made if need be.
    pub(super) fn connected<'l>(
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
                    PsError::Wire(WireError::Authentication { .. } | WireError::Tls { .. })
                    | PsError::Unavailable { .. }
                        if known =>
                    {
                        WireError::from(io::Error::other(error.to_string())).into()
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
        let address = self.endpoints[replica].address();
        if address.is_empty() {
            let nowhere = io::Error::other("it has not been started yet");
            return Err(WireError::from(nowhere).into());
        }
        let connected = Socket::connect(&address, deadline.min(Instant::now() + CONNECT_TIMEOUT));
        let socket = connected.map_err(|error| {
            if error.kind() == io::ErrorKind::InvalidInput {
                PsError::Invalid(format!("address '{address}', expected host:port ({error})"))
            } else {
                WireError::from(error).into()
            }
        })?;
        let socket = match &self.options.tls {
            Some(credentials) => socket.with_tls(credentials, self.options.service)?,
            None => socket,
        };
        let (mut socket, local) = self.greet(socket, replica, &address, deadline)?;
        if self.options.unix_sockets
            && !local.is_empty()
            && let Ok(nearer) = Socket::connect_local(&local)
            && let Ok((nearer, _)) = self.greet(nearer, replica, &address, deadline)
        {
            socket = nearer;
        }
        let timeout = socket.set_timeout(self.silence(lane));
        timeout.map_err(WireError::from)?;
        Ok(Connection::new(socket))
    }

    /// Proves the token on a new socket, which ends when the replica moves.
    fn greet(
        &self,
        socket: Socket,
        replica: usize,
        address: &str,
        deadline: Instant,
    ) -> Result<(Arc<Socket>, Vec<u8>), PsError> {
        let socket = Arc::new(socket);
        if !self.endpoints[replica].register(&socket, address) {
            let moved = io::Error::other("the replica has moved");
            return Err(WireError::from(moved).into());
        }
        let started = Instant::now();
        let deadline = deadline.min(started + HANDSHAKE_TIMEOUT);
        let place = Place {
            number: replica as u32,
            of: self.endpoints.len() as u32,
        };
        let caller = Caller {
            service: self.options.service,
            token: &self.token,
            worker_id: self.options.worker_id,
            expected: self.options.whole_job.then_some(place),
            layout: self.options.layout as u16,
        };
        match handshake::connect(&socket, &caller, address, deadline) {
            Ok(local) => Ok((socket, local)),
            Err(WireError::Malformed { message, .. }) => Err(PsError::Unavailable {
                replica,
                address: address.to_owned(),
                seconds: started.elapsed().as_secs_f64(),
                cause: message,
            }),
            Err(error) => Err(error.into()),
        }
    }
}
