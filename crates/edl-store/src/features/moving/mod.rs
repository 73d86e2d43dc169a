//! Rows that come from the store of another replica, and what is remembered beside them.

use crate::error::StoreError;
use crate::route::hash;
use crate::table::Table;

mod remembered;

use remembered::{KINDS, PIECE_BYTES};
pub use remembered::{Remembered, RememberedItem, RememberedKind};

/// What the part of another store remembers of a key.
pub(crate) struct Gift<'a> {
    pub(crate) kind: RememberedKind,
    pub(crate) hash: u64,
    pub(crate) version: u64,
    pub(crate) bytes: &'a [u8],
    /// Whether the key has a row here.
    pub(crate) has_row: bool,
}

impl Gift<'_> {
    /// Return its bytes as so many.
    pub(crate) fn array<const N: usize>(&self) -> Result<[u8; N], Torn> {
        self.bytes.try_into().map_err(|_| Torn { expected: N })
    }
}

/// The bytes of a gift are not so many, or are no text.
pub(crate) struct Torn {
    pub(crate) expected: usize,
}

impl Table {
    /// Have rows, weights and slots, as another store has them, unless later versions are here.
    pub(crate) fn put(
        &self,
        keys: &[u64],
        versions: &[u64],
        words: &[u64],
        rows: &[f32],
    ) -> Result<(), StoreError> {
        let (width, num_words) = (self.width(), self.columns().len());
        let expected = keys.len().saturating_mul(width);
        let fits = rows.len() == expected && words.len() == keys.len() * num_words;
        if !fits || versions.len() != keys.len() {
            return Err(StoreError::WrongLength {
                what: format!("the moved rows of table '{}'", self.name()),
                expected,
                found: rows.len(),
            });
        }
        self.check_keys(keys)?;
        self.check_room(keys)?;
        self.put_given((keys, versions, words, rows));
        Ok(())
    }

    /// Give what is remembered beside rows: all, or what has changed after a version.
    pub(crate) fn give_remembered<E: From<StoreError>>(
        &self,
        since: Option<u64>,
        take: &mut impl FnMut(&Remembered) -> Result<(), E>,
    ) -> Result<(), E> {
        for kind in KINDS {
            let mut found = Remembered::of(kind);
            for stripe in self.stripes() {
                let mut cursor = Some(0);
                while let Some(from) = cursor {
                    let features = &mut stripe.write().features;
                    cursor = features.give(kind, from, since, &mut found);
                }
                if found.bytes.len() > PIECE_BYTES {
                    take(&found)?;
                    found = Remembered::of(kind);
                }
            }
            if !found.keys.is_empty() {
                take(&found)?;
            }
        }
        Ok(())
    }

    /// Have what another store remembers.
    pub(crate) fn put_remembered(&self, given: &Remembered) -> Result<(), StoreError> {
        self.check_keys(&given.keys)?;
        for (key, version, bytes) in given.items()? {
            let hash = hash(key);
            let taken = self.change(self.stripe_of(hash), |stripe| {
                let has_row = stripe.has_row(hash);
                let gift = Gift {
                    kind: given.kind,
                    hash,
                    version,
                    bytes,
                    has_row,
                };
                (stripe.features.iter_mut()).try_for_each(|part| part.take(&gift))
            });
            taken.map_err(|Torn { expected }| StoreError::WrongLength {
                what: format!("what is remembered beside rows of table '{}'", self.name()),
                expected,
                found: bytes.len(),
            })?;
        }
        Ok(())
    }
}
