//! The facts that a table remembers of keys beside their rows, on the way to another store.

use crate::error::StoreError;
use crate::route::replica_of;

/// Bytes that are given at a time.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// What is remembered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RememberedKind {
    /// How often keys that have no row were seen: 4 bytes each.
    #[default]
    Counts,
    /// The cells of a hash slot's sketch, each under one key of the slot.
    Sketches,
    /// The strings that keys were made of, in UTF-8.
    Names,
    /// Other strings that were given for keys, by a hash of 8 bytes each.
    OtherNames,
}

pub(super) const KINDS: [RememberedKind; 4] = [
    RememberedKind::Counts,
    RememberedKind::Sketches,
    RememberedKind::Names,
    RememberedKind::OtherNames,
];

/// Some of what a table remembers, by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remembered {
    /// What it is.
    pub kind: RememberedKind,
    /// Keys; of other strings one key may come several times.
    pub keys: Vec<u64>,
    /// The version at which each was seen last; 0 where that is not known.
    pub versions: Vec<u64>,
    /// The end of each key's bytes.
    pub ends: Vec<u64>,
    /// The remembered bytes of each key, one after the other.
    pub bytes: Vec<u8>,
}

/// A key, its version, and what is remembered of it.
pub type RememberedItem<'r> = (u64, u64, &'r [u8]);

impl RememberedKind {
    /// Return the kind of a number; `None` if there is none such.
    pub fn of_number(number: u64) -> Option<Self> {
        KINDS.get(usize::try_from(number).ok()?).copied()
    }

    /// Return its number.
    pub fn number(self) -> u64 {
        KINDS.iter().position(|&kind| kind == self).unwrap_or(0) as u64
    }
}

impl Remembered {
    pub(crate) fn of(kind: RememberedKind) -> Self {
        Self {
            kind,
            ..Self::default()
        }
    }

    pub(crate) fn push(&mut self, key: u64, version: u64, bytes: &[u8]) {
        self.keys.push(key);
        self.versions.push(version);
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len() as u64);
    }

    /// Return each key with its version and bytes.
    ///
    /// # Errors
    /// Arrays that do not fit each other.
    pub fn items(&self) -> Result<Vec<RememberedItem<'_>>, StoreError> {
        let torn = || StoreError::WrongLength {
            what: "what is remembered of keys".to_owned(),
            expected: self.keys.len(),
            found: self.ends.len().min(self.versions.len()),
        };
        if self.versions.len() != self.keys.len() || self.ends.len() != self.keys.len() {
            return Err(torn());
        }
        let mut start = 0;
        let items = (self.keys.iter().zip(&self.versions).zip(&self.ends)).map(
            |((&key, &version), &end)| {
                let end = end as usize;
                let bytes = self.bytes.get(start..end).ok_or_else(torn)?;
                start = end;
                Ok((key, version, bytes))
            },
        );
        items.collect()
    }

    /// Give what each of so many replicas is to have of it, in pieces.
    ///
    /// # Errors
    /// Arrays that do not fit each other, or what `take` returns.
    pub fn split<E: From<StoreError>>(
        &self,
        num_replicas: u32,
        mut take: impl FnMut(u32, &Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut parts = vec![Self::of(self.kind); num_replicas as usize];
        for (key, version, bytes) in self.items()? {
            let replica = replica_of(key, num_replicas);
            let part = &mut parts[replica as usize];
            part.push(key, version, bytes);
            if part.bytes.len() > PIECE_BYTES {
                take(replica, part)?;
                *part = Self::of(self.kind);
            }
        }
        for (replica, part) in (0..).zip(&parts) {
            if !part.keys.is_empty() {
                take(replica, part)?;
            }
        }
        Ok(())
    }
}
