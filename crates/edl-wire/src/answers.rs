//! Reads answers with rows: their arrays go from the connection straight into their places.
//!
//! The files of [`op`](crate::op) know the headers of such answers, but no connection.

use crate::connection::{Connection, Place};
use crate::error::WireError;
use crate::frame::Header;
use crate::op::push::Outcome;
use crate::op::{FLAG_NOT_YET, FLAG_PUSHED, pull, push_pull};

/// Reads an answer to `Pull`; its arrays go straight into their places.
///
/// # Errors
/// [`WireError::Malformed`] for other arrays than the places are for; a lost connection.
pub fn pull(
    connection: &mut Connection,
    header: &Header,
    places: &mut [Place<'_>],
) -> Result<pull::Received, WireError> {
    if header.flags & FLAG_NOT_YET != 0 {
        connection.read_arrays(header, &mut [])?;
        return Ok(pull::Received::NotYet);
    }
    connection.read_arrays(header, places)?;
    Ok(pull::Received::Pulled {
        version: header.args[0],
        store_nanos: header.args[3],
    })
}

/// Reads an answer to `PushPull`; its rows and vectors go straight into their places.
///
/// # Errors
/// [`WireError::Malformed`] for other arrays than the places are for; a lost connection.
pub fn push_pull(
    connection: &mut Connection,
    header: &Header,
    places: &mut [Place<'_>],
) -> Result<push_pull::Received, WireError> {
    if header.flags & FLAG_PUSHED == 0 {
        connection.read_arrays(header, &mut [])?;
        return Ok(push_pull::Received {
            outcome: Outcome::NotYet,
            pulled: None,
        });
    }
    let is_pulled = header.flags & FLAG_NOT_YET == 0;
    let places = if is_pulled { places } else { &mut [] };
    let parts = connection.read_parts_and_arrays(header, places)?;
    Ok(push_pull::Received {
        outcome: Outcome::of(header, &parts),
        pulled: is_pulled.then_some(header.args[3]),
    })
}

/// Reads an answer to `CommitPull`; its arrays go straight into their places. Returns the version.
///
/// # Errors
/// [`WireError::Malformed`] for other arrays than the places are for; a lost connection.
pub fn commit_pull(
    connection: &mut Connection,
    header: &Header,
    places: &mut [Place<'_>],
) -> Result<u64, WireError> {
    connection.read_arrays(header, places)?;
    Ok(header.args[0])
}
