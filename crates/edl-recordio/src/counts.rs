//! Counts the values of each feature in `tf.train.Example` messages.
//!
//! Any number of threads count at once, each some records. A thread gathers the values of its
//! records by column. Then it adds the values of one column after the other to the shared counts.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use ahash::RandomState;

use crate::decode::{Kind, entry_of, kind_of, list_of};
use crate::protobuf::{Field, Fields, varint};

type Names = HashMap<Box<[u8]>, usize, RandomState>;
type Occurrences<T> = HashMap<T, u64, RandomState>;

/// Texts of up to so many bytes are counted as a number.
const SHORT_BYTES: usize = 8;
/// The cost of one different value: the value, its count, and the spare room of a hash map.
const ENTRY_BYTES: usize = 34;

/// The limit of memory for counting. A caller has a slower way that needs less memory.
#[derive(Clone, Copy, Debug)]
pub struct CountLimits {
    /// The most different values of one column.
    pub distinct: usize,
    /// About the most bytes that the values and counts of all columns may take.
    pub bytes: usize,
}

/// Why records were not counted. The counts are of no use then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCounted {
    /// A record that is no plain message, or a column that has values of two kinds.
    #[error("record {record}: {what}")]
    Undecoded {
        /// Its number among those given.
        record: usize,
        /// Why.
        what: String,
    },
    /// There are more different values than the limits allow.
    #[error("there are more different values than may be counted")]
    TooMany,
}

/// Counts of the values of all columns.
#[derive(Debug)]
pub struct ExampleCounts {
    limits: CountLimits,
    columns: RwLock<Vec<Arc<Column>>>,
    num_bytes: AtomicUsize, // of the values and counts; each thread adds what it made larger
}

/// A feature, and how often each of its values occurs. NaN and empty text are no values.
#[derive(Clone, Debug)]
pub struct CountedColumn {
    /// Its name.
    pub name: String,
    /// The kind of its values.
    pub kind: Kind,
    /// Whether a record has several.
    pub is_list: bool,
    /// Records that have any, be they NaN or empty.
    pub num_records: u64,
    /// Values in all.
    pub num_values: u64,
    /// Different values.
    pub num_distinct: usize,
}

#[derive(Debug)]
struct Column {
    name: Box<[u8]>,
    kind: Kind,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    is_list: bool,
    num_records: u64,
    num_values: u64,
    numbers: Occurrences<u64>, // the bits of whole or real numbers
    short: [Occurrences<u64>; SHORT_BYTES + 1], // by length: the bytes from the highest on
    long: Occurrences<Box<[u8]>>,
    long_bytes: usize, // of the texts in `long`
}

/// The values of one column of some records.
#[derive(Debug)]
struct Gathered<'a> {
    column: Arc<Column>,
    seen: usize, // 1 + the last record that has it
    is_list: bool,
    num_records: u64,
    numbers: Vec<u64>,
    texts: Vec<&'a [u8]>,
}

impl ExampleCounts {
    /// Nothing is counted yet.
    #[must_use]
    pub fn new(limits: CountLimits) -> ExampleCounts {
        ExampleCounts {
            limits,
            columns: RwLock::default(),
            num_bytes: AtomicUsize::new(0),
        }
    }

    /// Counts the values of some records.
    ///
    /// # Errors
    ///
    /// [`NotCounted`]; some of the records may have been counted.
    pub fn add<'a>(&self, records: impl IntoIterator<Item = &'a [u8]>) -> Result<(), NotCounted> {
        let mut gather = Gather {
            counts: self,
            columns: Vec::new(),
            by_name: Names::default(),
        };
        for (record, bytes) in records.into_iter().enumerate() {
            gather
                .record(record, bytes)
                .map_err(|what| NotCounted::Undecoded { record, what })?;
        }
        // Columns that another thread is at are dealt with last.
        let mut busy = Vec::new();
        for gathered in &gather.columns {
            match gathered.column.counts.try_lock() {
                Ok(mut counts) => self.merge(gathered, &mut counts)?,
                Err(_) => busy.push(gathered),
            }
        }
        busy.into_iter()
            .try_for_each(|gathered| self.merge(gathered, &mut gathered.column.locked()))
    }

    fn merge(&self, gathered: &Gathered<'_>, counts: &mut Counts) -> Result<(), NotCounted> {
        let before = counts.num_bytes();
        counts.add(gathered);
        let more = counts.num_bytes() - before;
        let num_bytes = self.num_bytes.fetch_add(more, Ordering::Relaxed) + more;
        if counts.num_distinct() > self.limits.distinct || num_bytes > self.limits.bytes {
            return Err(NotCounted::TooMany);
        }
        Ok(())
    }

    /// Returns the column of a name, a new one if there is none.
    fn column(&self, name: &[u8], kind: Kind) -> Result<Arc<Column>, String> {
        let mut columns = self.columns.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(column) = columns.iter().find(|column| *column.name == *name) {
            return Ok(Arc::clone(column));
        }
        std::str::from_utf8(name).map_err(|_| "the name of a feature is no UTF-8".to_owned())?;
        let column = Arc::new(Column {
            name: name.into(),
            kind,
            counts: Mutex::default(),
        });
        columns.push(Arc::clone(&column));
        Ok(column)
    }

    /// The columns that were found, in the order of their names.
    #[must_use]
    pub fn columns(&self) -> Vec<CountedColumn> {
        let columns = self.sorted();
        columns.iter().map(|column| column.summary()).collect()
    }

    fn sorted(&self) -> Vec<Arc<Column>> {
        let columns = self.columns.read().unwrap_or_else(PoisonError::into_inner);
        let mut sorted = columns.clone();
        sorted.sort_by(|one, other| one.name.cmp(&other.name));
        sorted
    }

    /// The different whole numbers of a column of them, ascending, and how often each occurs.
    ///
    /// # Panics
    ///
    /// If there is no such column.
    #[must_use]
    pub fn whole_numbers(&self, column: usize) -> Vec<(i64, u64)> {
        let column = &self.sorted()[column];
        let counts = column.locked();
        let mut found: Vec<_> = counts
            .numbers
            .iter()
            .map(|(&bits, &count)| (bits as i64, count))
            .collect();
        found.sort_unstable();
        found
    }

    /// The different real numbers of a column of them, ascending, and how often each occurs.
    ///
    /// # Panics
    ///
    /// If there is no such column.
    #[must_use]
    pub fn real_numbers(&self, column: usize) -> Vec<(f32, u64)> {
        let column = &self.sorted()[column];
        let counts = column.locked();
        let mut found: Vec<_> = counts
            .numbers
            .iter()
            .map(|(&bits, &count)| (f32::from_bits(bits as u32), count))
            .collect();
        found.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        found
    }

    /// The texts of a column of them that occur most often, at least `threshold` times: the most
    /// frequent first, those of one count by their bytes.
    ///
    /// # Panics
    ///
    /// If there is no such column.
    #[must_use]
    pub fn most_frequent(
        &self,
        column: usize,
        threshold: u64,
        limit: usize,
    ) -> Vec<(Vec<u8>, u64)> {
        let column = &self.sorted()[column];
        let counts = column.locked();
        let mut found: Vec<_> = counts
            .texts()
            .filter(|text| text.count.0 >= threshold)
            .collect();
        if found.len() > limit {
            found.select_nth_unstable(limit);
            found.truncate(limit);
        }
        found.sort_unstable();
        found
            .iter()
            .map(|text| (text.to_bytes(), text.count.0))
            .collect()
    }
}

impl Column {
    /// A thread that panicked while it counted leaves counts that nobody asks for.
    fn locked(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn summary(&self) -> CountedColumn {
        let counts = self.locked();
        CountedColumn {
            name: String::from_utf8_lossy(&self.name).into_owned(),
            kind: self.kind,
            is_list: counts.is_list,
            num_records: counts.num_records,
            num_values: counts.num_values,
            num_distinct: counts.num_distinct(),
        }
    }
}

impl Counts {
    fn add(&mut self, gathered: &Gathered<'_>) {
        self.is_list |= gathered.is_list;
        self.num_records += gathered.num_records;
        for &bits in &gathered.numbers {
            *self.numbers.entry(bits).or_insert(0) += 1;
        }
        self.num_values += gathered.numbers.len() as u64;
        for &text in &gathered.texts {
            match short(text) {
                Some(bits) => *self.short[text.len()].entry(bits).or_insert(0) += 1,
                None => match self.long.get_mut(text) {
                    Some(count) => *count += 1,
                    None => {
                        self.long_bytes += text.len() + size_of::<Box<[u8]>>();
                        self.long.insert(text.into(), 1);
                    }
                },
            }
        }
        self.num_values += gathered.texts.len() as u64;
    }

    fn num_distinct(&self) -> usize {
        let short = self.short.iter().map(HashMap::len).sum::<usize>();
        self.numbers.len() + short + self.long.len()
    }

    fn num_bytes(&self) -> usize {
        ENTRY_BYTES * self.num_distinct() + self.long_bytes
    }

    fn texts(&self) -> impl Iterator<Item = Text<'_>> {
        let short = self.short.iter().enumerate().flat_map(|(length, texts)| {
            texts.iter().map(move |(&bits, &count)| Text {
                count: Reverse(count),
                start: bits,
                length,
                rest: &[],
            })
        });
        let long = self.long.iter().map(|(text, &count)| Text {
            count: Reverse(count),
            start: start_of(text),
            length: text.len(),
            rest: &text[SHORT_BYTES..],
        });
        short.chain(long)
    }
}

/// A text and how often it occurs, ordered as a vocabulary is.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Text<'a> {
    count: Reverse<u64>,
    start: u64, // the first bytes from the highest on, so that numbers are in the order of texts
    rest: &'a [u8],
    length: usize, // of all of it: what begins alike and ends earlier comes first
}

impl Text<'_> {
    fn to_bytes(&self) -> Vec<u8> {
        let start = self.start.to_be_bytes();
        [&start[..self.length.min(SHORT_BYTES)], self.rest].concat()
    }
}

fn short(text: &[u8]) -> Option<u64> {
    (text.len() <= SHORT_BYTES).then(|| start_of(text))
}

fn start_of(text: &[u8]) -> u64 {
    if let Some(start) = text.first_chunk() {
        return u64::from_be_bytes(*start);
    }
    let mut start = [0; SHORT_BYTES];
    start[..text.len()].copy_from_slice(text);
    u64::from_be_bytes(start)
}

/// The values that one thread has found in its records.
struct Gather<'c, 'a> {
    counts: &'c ExampleCounts,
    columns: Vec<Gathered<'a>>,
    by_name: Names,
}

impl<'a> Gather<'_, 'a> {
    fn record(&mut self, record: usize, bytes: &'a [u8]) -> Result<(), String> {
        let mut expected = 0; // records mostly have the same features in the same order
        let mut example = Fields(bytes);
        while let Some((tag, features)) = example.next()? {
            let (1, Field::Delimited(mut features)) = (tag, features) else {
                return Err(format!("the Example has a field {tag}"));
            };
            while !features.is_empty() {
                let (name, kind, list) = match plain_entry(features) {
                    Some((entry, rest)) => {
                        features = rest;
                        entry
                    }
                    None => match next_entry(&mut features)? {
                        Some(entry) => entry,
                        None => continue,
                    },
                };
                let number = self.number_of(name, kind, expected)?;
                expected = number + 1;
                let column = &mut self.columns[number];
                if column.column.kind != kind {
                    return Err("a feature has values of two kinds".to_owned());
                }
                if std::mem::replace(&mut column.seen, record + 1) == record + 1 {
                    return Err("a feature is there twice".to_owned());
                }
                column.add(list)?;
            }
        }
        Ok(())
    }

    fn number_of(&mut self, name: &[u8], kind: Kind, expected: usize) -> Result<usize, String> {
        // A feature that a record lacks is mostly one of few.
        let nearest = self.columns.iter().enumerate().skip(expected).take(4);
        for (number, gathered) in nearest {
            if *gathered.column.name == *name {
                return Ok(number);
            }
        }
        if let Some(&number) = self.by_name.get(name) {
            return Ok(number);
        }
        let number = self.columns.len();
        self.columns
            .push(Gathered::new(self.counts.column(name, kind)?));
        self.by_name.insert(name.into(), number);
        Ok(number)
    }
}

type Entry<'a> = (&'a [u8], Kind, &'a [u8]); // name, kind, list of values

/// Reads an entry of the Features whose messages are short and in the order that all encoders
/// write; returns what follows it too.
#[inline]
fn plain_entry(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let (entry, rest) = plain(bytes, 0x0a)?;
    let (name, entry) = plain(entry, 0x0a)?;
    let (feature, after_feature) = plain(entry, 0x12)?;
    let kind = match feature.first()? {
        0x0a => Kind::Bytes,
        0x12 => Kind::Float,
        0x1a => Kind::Int64,
        _ => return None,
    };
    let (list, after_list) = plain(feature, feature[0])?;
    (after_feature.is_empty() && after_list.is_empty()).then_some(((name, kind, list), rest))
}

/// Reads a message of less than 128 bytes of the field that has this tag.
#[inline]
fn plain(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    match bytes {
        [first, length, rest @ ..] if *first == tag && *length < 0x80 => {
            rest.split_at_checked(usize::from(*length))
        }
        _ => None,
    }
}

/// Reads any entry of the Features; `None` if its feature has no kind.
fn next_entry<'a>(features: &mut &'a [u8]) -> Result<Option<Entry<'a>>, String> {
    let mut fields = Fields(features);
    let found = fields.next()?;
    *features = fields.0;
    let Some((1, Field::Delimited(entry))) = found else {
        return Err("the Features have a field that is no entry".to_owned());
    };
    let (name, value) = entry_of(entry)?;
    if kind_of(value)?.is_none() {
        return Ok(None);
    }
    let (kind, list) = list_of(value)?;
    Ok(Some((name, kind, list)))
}

impl<'a> Gathered<'a> {
    fn new(column: Arc<Column>) -> Gathered<'a> {
        Gathered {
            column,
            seen: 0,
            is_list: false,
            num_records: 0,
            numbers: Vec::new(),
            texts: Vec::new(),
        }
    }

    /// Adds the values of one record.
    fn add(&mut self, list: &'a [u8]) -> Result<(), String> {
        let num_values = match plain(list, 0x0a) {
            Some((value, [])) => self.add_field(Field::Delimited(value))?,
            _ => self.add_fields(Fields(list))?,
        };
        self.is_list |= num_values > 1;
        self.num_records += u64::from(num_values > 0);
        Ok(())
    }

    fn add_fields(&mut self, mut values: Fields<'a>) -> Result<usize, String> {
        let mut num_values = 0;
        while let Some((tag, value)) = values.next()? {
            if tag != 1 {
                return Err(format!("a list of values has a field {tag}"));
            }
            num_values += self.add_field(value)?;
        }
        Ok(num_values)
    }

    #[inline]
    fn add_field(&mut self, value: Field<'a>) -> Result<usize, String> {
        match (self.column.kind, value) {
            (Kind::Int64, Field::Delimited(mut packed)) => {
                let mut num_values = 0;
                while !packed.is_empty() {
                    self.numbers.push(varint(&mut packed)?);
                    num_values += 1;
                }
                Ok(num_values)
            }
            (Kind::Int64, Field::Varint(value)) => {
                self.numbers.push(value);
                Ok(1)
            }
            (Kind::Float, Field::Delimited(packed)) => {
                let (whole, rest) = packed.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err("packed numbers are cut off".to_owned());
                }
                whole.iter().for_each(|bytes| self.add_float(*bytes));
                Ok(whole.len())
            }
            (Kind::Float, Field::Fixed32(bytes)) => {
                self.add_float(bytes);
                Ok(1)
            }
            (Kind::Bytes, Field::Delimited(text)) => {
                if !text.is_empty() {
                    self.texts.push(text);
                }
                Ok(1)
            }
            _ => Err("a value is of another type".to_owned()),
        }
    }

    fn add_float(&mut self, bytes: [u8; 4]) {
        let value = f32::from_le_bytes(bytes);
        if !value.is_nan() {
            let value = value + 0.0; // both zeros are one value
            self.numbers.push(u64::from(value.to_bits()));
        }
    }
}
