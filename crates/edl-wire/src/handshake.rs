//! The handshake: both ends prove that they know the job's token, before anything else is read.
//!
//! There are three messages of fixed size, so that a length from a stranger is never believed:
//!
//! 1. server -> client: [`Greeting`], with a nonce;
//! 2. client -> server: [`Proof`], with a nonce, and the MAC of all so far under the token;
//! 3. server -> client: [`Verdict`], with the MAC of all so far under the token.
//!
//! The two MACs begin with different labels, so neither can be used as the other.
//!
//! If TLS is used, it comes first, and both MACs cover the session's exporter (RFC 9266). Only the
//! two ends of the session know the exporter. So an attacker between two sessions cannot pass the
//! proof of one session on to the other, whatever certificate the attacker has.

use std::io::{self, Write};
use std::time::Instant;

use bytemuck::{Pod, Zeroable};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::deadline::timed_out;
use crate::error::WireError;
use crate::frame::VERSION;
use crate::service::Service;
use crate::socket::Socket;
use crate::tls::{Binding, words_of};

const MAGIC: [u8; 4] = *b"EDLP";
const ACCEPTED: u16 = 1;
const REFUSED: u16 = 2;
/// Accepted, and the two ends speak of different layouts.
const OTHER_LAYOUT: u16 = 3;
/// Room for the name of an abstract Unix socket.
const LOCAL_NAME_BYTES: usize = 64;

type Nonce = [u8; 32];
type Tag = [u8; 32];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Greeting {
    magic: [u8; 4],
    version: u16,
    reserved: u16,
    nonce: Nonce,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Proof {
    magic: [u8; 4],
    version: u16,
    /// The layout that its requests will be made for.
    layout: u16,
    worker_id: i64,
    nonce: Nonce,
    tag: Tag,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Verdict {
    magic: [u8; 4],
    version: u16,
    status: u16,
    /// The number of this server among several.
    number: u32,
    of: u32,
    local_name: [u8; LOCAL_NAME_BYTES],
    tag: Tag,
}

/// The place of this server among several equal servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number, from 0.
    pub number: u32,
    /// How many there are.
    pub of: u32,
}

/// The facts that a server tells to clients that know the token.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// Which it is.
    pub place: Place,
    /// Counts how often the number of servers was another; 0 where it never is.
    pub layout: u16,
    /// Its Unix socket, where clients that know the token may reconnect; empty for none.
    pub local_name: &'a str,
}

/// Bytes that both ends hash before their own: the session, and everything that was said before.
///
/// All parts of a handshake have fixed sizes, so with a binding there are other bytes than without.
fn mac(
    token: &[u8],
    label: &[u8],
    binding: Option<&Binding>,
    said: &[&[u8]],
) -> Result<Hmac<Sha256>, WireError> {
    let mut mac = Hmac::<Sha256>::new_from_slice(token).map_err(|error| {
        WireError::System(format!("the token cannot be used as a key: {error}"))
    })?;
    mac.update(label);
    if let Some(binding) = binding {
        mac.update(binding);
    }
    for part in said {
        mac.update(part);
    }
    Ok(mac)
}

fn tag_of(mac: Hmac<Sha256>) -> Tag {
    mac.finalize().into_bytes().into()
}

fn all_but_tag<T: Pod>(message: &T) -> &[u8] {
    let bytes = bytemuck::bytes_of(message);
    &bytes[..bytes.len() - size_of::<Tag>()]
}

fn nonce() -> Result<Nonce, WireError> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce)
        .map_err(|error| WireError::System(format!("no random numbers: {error}")))?;
    Ok(nonce)
}

/// Returns a name for an abstract Unix socket that nobody else has or guesses.
pub(crate) fn local_name(service: &Service) -> Result<String, WireError> {
    let random = nonce()?;
    let hex: String = random[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(format!("{}-{hex}", service.local_prefix))
}

fn read<T: Pod>(socket: &Socket, address: &str, deadline: Instant) -> Result<T, WireError> {
    let mut message = T::zeroed();
    let read = socket.read_before(bytemuck::bytes_of_mut(&mut message), deadline);
    read.map_err(|error| match words_of(&error) {
        // A client of TLS hears only here that its certificate was refused.
        Some(words) => WireError::tls(words).said_by(address),
        None => error.into(),
    })?;
    Ok(message)
}

/// The first bytes of every TLS session.
const TLS_START: [u8; 2] = [0x16, 0x03];

fn check_start(magic: [u8; 4], version: u16, who: &str) -> Result<(), WireError> {
    if magic.starts_with(&TLS_START) {
        return Err(WireError::malformed(format!(
            "the {who} speaks TLS, this process does not; is --tls the same in all processes?"
        )));
    }
    if magic != MAGIC {
        return Err(WireError::malformed(format!(
            "the handshake begins with {:?}, expected {:?}: this is no elasticdl {who}",
            magic.escape_ascii().to_string(),
            MAGIC.escape_ascii().to_string(),
        )));
    }
    if version != VERSION {
        return Err(WireError::malformed(format!(
            "the {who} speaks wire version {version}, this process {VERSION}; run the same \
             elasticdl in all processes of a job"
        )));
    }
    Ok(())
}

/// Does the server's side. Returns the worker's number, and the layout that the worker knows. The
/// server tells its own place only to clients that know the token.
///
/// # Errors
/// A peer that proves nothing in time, or sends something else.
pub fn accept(
    socket: &Socket,
    service: &Service,
    token: &[u8],
    identity: Identity<'_>,
    deadline: Instant,
) -> Result<(i64, u16), WireError> {
    socket.secure(deadline)?;
    let binding = socket.binding();
    let greeting = Greeting {
        magic: MAGIC,
        version: VERSION,
        reserved: 0,
        nonce: nonce()?,
    };
    let mut writer = socket;
    writer.write_all(bytemuck::bytes_of(&greeting))?;

    // The magic is read by itself: a stranger who says a few bytes and waits is known at once.
    let mut proof = Proof::zeroed();
    let (start, rest) = bytemuck::bytes_of_mut(&mut proof).split_at_mut(8);
    socket.read_before(start, deadline).map_err(no_proof)?;
    let (magic, version) = (
        [start[0], start[1], start[2], start[3]],
        [start[4], start[5]],
    );
    check_start(magic, u16::from_le_bytes(version), service.client)?;
    socket.read_before(rest, deadline).map_err(no_proof)?;

    let greeting_bytes = bytemuck::bytes_of(&greeting);
    let expected = mac(
        token,
        service.client_label,
        binding,
        &[greeting_bytes, all_but_tag(&proof)],
    )?;
    let accepted = expected.verify_slice(&proof.tag).is_ok();

    let mut verdict = Verdict {
        magic: MAGIC,
        version: VERSION,
        status: match accepted {
            false => REFUSED,
            true if proof.layout == identity.layout => ACCEPTED,
            true => OTHER_LAYOUT,
        },
        number: 0,
        of: 0,
        local_name: [0; LOCAL_NAME_BYTES],
        tag: [0; 32],
    };
    if accepted {
        (verdict.number, verdict.of) = (identity.place.number, identity.place.of);
        let name = identity.local_name.as_bytes();
        let len = name.len().min(LOCAL_NAME_BYTES);
        verdict.local_name[..len].copy_from_slice(&name[..len]);
        let said = [
            greeting_bytes,
            bytemuck::bytes_of(&proof),
            all_but_tag(&verdict),
        ];
        verdict.tag = tag_of(mac(token, service.server_label, binding, &said)?);
    }
    writer.write_all(bytemuck::bytes_of(&verdict))?;
    if accepted {
        Ok((proof.worker_id, proof.layout))
    } else {
        Err(WireError::Authentication {
            address: "a client".to_owned(),
        })
    }
}

/// A server that waits for TLS says nothing to a client that does not speak it.
fn no_greeting(error: WireError, binding: Option<&Binding>) -> WireError {
    match error {
        WireError::Connection(error)
            if binding.is_none()
                && (timed_out(&error) || error.kind() == io::ErrorKind::UnexpectedEof) =>
        {
            let hint = "no greeting came; does it speak TLS, and this process does not (--tls)?";
            io::Error::new(error.kind(), hint).into()
        }
        other => other,
    }
}

fn no_proof(error: io::Error) -> WireError {
    if timed_out(&error) {
        WireError::malformed("no proof of the token came in time".to_owned())
    } else {
        WireError::malformed(format!(
            "the connection ended before a proof of the token: {error}"
        ))
    }
}

/// The facts that a client tells in a handshake, and the facts that it expects.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The service that the client looks for.
    pub service: &'a Service,
    /// The job's.
    pub token: &'a [u8],
    /// Names it in the server's log.
    pub worker_id: i64,
    /// The expected place among several equal servers; `None`: any place.
    pub expected: Option<Place>,
    /// The layout that it knows; 0 where there is but one.
    pub layout: u16,
}

/// The client's side. Returns the server's local name, empty if it has none.
///
/// # Errors
/// [`WireError::Connection`] if another of several equal servers is there: the one that was looked
/// for has moved, or is about to.
pub fn connect(
    socket: &Socket,
    caller: &Caller<'_>,
    address: &str,
    deadline: Instant,
) -> Result<Vec<u8>, WireError> {
    let Caller { service, token, .. } = *caller;
    let refused = || WireError::Authentication {
        address: address.to_owned(),
    };
    socket
        .secure(deadline)
        .map_err(|error| error.said_by(address))?;
    let binding = socket.binding();
    let greeting: Greeting =
        read(socket, address, deadline).map_err(|error| no_greeting(error, binding))?;
    check_start(greeting.magic, greeting.version, service.server)
        .map_err(|error| error.said_by(address))?;

    let greeting_bytes = bytemuck::bytes_of(&greeting);
    let mut proof = Proof {
        magic: MAGIC,
        version: VERSION,
        layout: caller.layout,
        worker_id: caller.worker_id,
        nonce: nonce()?,
        tag: [0; 32],
    };
    let said = [greeting_bytes, all_but_tag(&proof)];
    proof.tag = tag_of(mac(token, service.client_label, binding, &said)?);
    let mut writer = socket;
    writer.write_all(bytemuck::bytes_of(&proof))?;

    let verdict: Verdict = read(socket, address, deadline)?;
    check_start(verdict.magic, verdict.version, service.server)
        .map_err(|error| error.said_by(address))?;
    let said = [
        greeting_bytes,
        bytemuck::bytes_of(&proof),
        all_but_tag(&verdict),
    ];
    if !matches!(verdict.status, ACCEPTED | OTHER_LAYOUT)
        || mac(token, service.server_label, binding, &said)?
            .verify_slice(&verdict.tag)
            .is_err()
    {
        return Err(refused());
    }
    let found = Place {
        number: verdict.number,
        of: verdict.of,
    };
    // How many there are is of a layout: where that is another, each request is told so.
    let is_here = |expected: &Place| match verdict.status {
        OTHER_LAYOUT => expected.number == found.number,
        _ => *expected == found,
    };
    if let Some(expected) = caller.expected.filter(|expected| !is_here(expected)) {
        return Err(elsewhere(service, found, expected).into());
    }
    let end = verdict.local_name.iter().position(|&byte| byte == 0);
    Ok(verdict.local_name[..end.unwrap_or(LOCAL_NAME_BYTES)].to_vec())
}

fn elsewhere(service: &Service, found: Place, expected: Place) -> io::Error {
    let what = service.server;
    io::Error::other(format!(
        "{what} {} of {} is there, expected {what} {} of {}; waiting to be told where that is",
        found.number, found.of, expected.number, expected.of
    ))
}
