//! The frame of names, at both ends.

use edl_store::{Named, Store};

use crate::error::PsError;
use crate::frame::{Array, Header, Kind, Op, Outgoing};
use crate::names::{NewNames, names_of};

/// Says the strings of keys to one replica.
pub(crate) fn request(names: &[NewNames]) -> Outgoing<'_> {
    names.iter().fold(Outgoing::new(Op::Name), |frame, names| {
        frame
            .keys(names.table, &names.keys)
            .keys(names.table, &names.ends)
            .text(&names.text)
    })
}

/// Reads what a replica answered.
pub(crate) fn answer_of(header: &Header, arrays: &[Array<'_>]) -> Result<Named, PsError> {
    match arrays {
        [keys] if keys.entry.kind == Kind::Keys => Ok(Named {
            generation: header.args[0],
            waiting: keys.u64s()?.to_vec(),
        }),
        _ => Err(PsError::malformed(
            "names were answered by something else than the keys that wait".to_owned(),
        )),
    }
}

/// Gives a store the strings of keys.
pub(crate) fn name(store: &Store, names: &[NewNames]) -> Result<Named, PsError> {
    let mut named = Named {
        generation: store.naming_generation(),
        waiting: Vec::new(),
    };
    for names in names {
        let texts = names.names().ok_or_else(torn)?;
        let of_table = store.name_keys(names.table, &names.keys, &texts)?;
        named.waiting.extend(of_table.waiting);
    }
    Ok(named)
}

/// Does what a frame of names asks.
pub(crate) fn answer(
    store: &Store,
    arrays: &[Array<'_>],
    send: impl FnOnce(Outgoing<'_>) -> Result<(), PsError>,
) -> Result<(), PsError> {
    let mut named = Named {
        generation: store.naming_generation(),
        waiting: Vec::new(),
    };
    let (tables, rest) = arrays.as_chunks::<3>();
    if !rest.is_empty() {
        return Err(torn());
    }
    for [keys, ends, text] in tables {
        let kinds = [keys.entry.kind, ends.entry.kind, text.entry.kind];
        if kinds != [Kind::Keys, Kind::Keys, Kind::Text] {
            return Err(torn());
        }
        let texts = names_of(text.text()?, ends.u64s()?).ok_or_else(torn)?;
        let of_table = store.name_keys(keys.entry.table, keys.u64s()?, &texts)?;
        named.waiting.extend(of_table.waiting);
    }
    send(
        Outgoing::new(Op::Name)
            .args([named.generation, 0, 0, 0])
            .keys(0, &named.waiting),
    )
}

fn torn() -> PsError {
    PsError::malformed("names that are not keys, ends and a text of each table".to_owned())
}
