//! The footer of a Parquet file, looked at before the library opens it.
//!
//! The library ends the process when it meets some footers that are damaged or encrypted, and it
//! believes what a footer says of numbers of values. Thrift's compact protocol and `parquet.thrift`
//! are in the format's specification (github.com/apache/parquet-format).

const MAX_DEPTH: usize = 32;

/// The description of one column of values in a footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Its name, after those of the groups that it is in, with points between them.
    pub path: String,
    /// Whether a row group may have nulls of it.
    pub may_be_null: bool,
    is_nullable: bool,
    is_repeated: bool,
}

/// Reads a footer: the bytes between the last row group and the length of the footer.
///
/// # Errors
///
/// The problem in words: the footer is damaged, or it or a column is encrypted.
pub fn read_footer(bytes: &[u8]) -> Result<Vec<Leaf>, String> {
    let mut thrift = Thrift { bytes, at: 0 };
    let (mut num_rows, mut leaves, mut groups) = (None, None, None);
    thrift.fields(0, |thrift, field, kind| {
        match (field, kind) {
            (2, Kind::List) => leaves = Some(schema(thrift)?),
            (3, Kind::Number) => num_rows = Some(thrift.zigzag()?),
            (4, Kind::List) => groups = Some(thrift.list(1, row_group)?),
            (8, Kind::Struct) => return Err(ENCRYPTED.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let (Some(num_rows), Some(mut leaves), Some(groups)) = (num_rows, leaves, groups) else {
        return Err("its footer lacks the schema, the rows or the row groups".to_owned());
    };
    let mut sum = 0_i64;
    for (number, group) in groups.iter().enumerate() {
        let rows = group.num_rows;
        sum = sum.saturating_add(rows);
        if rows < 0 || group.chunks.len() != leaves.len() {
            return Err(format!(
                "row group {number}: its footer says {rows} rows of {} columns, expected {} \
                 columns: it is damaged",
                group.chunks.len(),
                leaves.len()
            ));
        }
        for (leaf, chunk) in leaves.iter_mut().zip(&group.chunks) {
            let path = &leaf.path;
            if chunk.is_encrypted {
                return Err(format!(
                    "column {path:?} in row group {number}: {ENCRYPTED}"
                ));
            }
            let is_wrong = match leaf.is_repeated {
                true => chunk.num_values < 0,
                false => chunk.num_values != rows,
            };
            if is_wrong {
                return Err(format!(
                    "column {path:?} in row group {number}: its footer says {} values, and {rows} \
                     rows: it is damaged",
                    chunk.num_values
                ));
            }
            leaf.may_be_null |= leaf.is_nullable && chunk.null_count != Some(0);
        }
    }
    if sum != num_rows {
        return Err(format!(
            "its footer says {num_rows} rows, and {sum} in its row groups: it is damaged"
        ));
    }
    Ok(leaves)
}

/// Checks that the pages of a column in a row group have as many values as the footer says.
///
/// The library trusts the header of each page. It stops at the number of the footer, so the values
/// after a wrong page would be in the wrong rows.
///
/// # Errors
///
/// The problem in words: a page is cut or damaged, or the pages have another number of values.
pub fn check_pages(bytes: &[u8], num_values: i64) -> Result<(), String> {
    let mut thrift = Thrift { bytes, at: 0 };
    let mut found = 0_i64;
    while found < num_values && thrift.at < bytes.len() {
        let (num_bytes, values) = page(&mut thrift)?;
        thrift.take(num_bytes)?;
        found = found.saturating_add(values);
    }
    if found == num_values {
        return Ok(());
    }
    Err(format!(
        "its pages have {found} values, and its footer says {num_values}: it is damaged"
    ))
}

/// Reads the header of a page: how many bytes follow it, and how many values of rows it has.
fn page(thrift: &mut Thrift<'_>) -> Result<(usize, i64), String> {
    let (mut num_bytes, mut values) = (None, 0);
    let damaged = || "the header of a page is damaged".to_owned();
    thrift
        .fields(0, |thrift, field, kind| {
            match (field, kind) {
                (3, Kind::Number) => num_bytes = usize::try_from(thrift.zigzag()?).ok(),
                (5 | 8, Kind::Struct) => thrift.fields(1, |thrift, field, kind| {
                    match (field, kind) {
                        (1, Kind::Number) => values = thrift.zigzag()?,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?,
                _ => return Ok(false),
            }
            Ok(true)
        })
        .map_err(|_| damaged())?;
    let num_bytes = num_bytes.filter(|_| values >= 0).ok_or_else(damaged)?;
    Ok((num_bytes, values))
}

const ENCRYPTED: &str = "it is encrypted, and elasticdl has no keys; write it without encryption";

struct RowGroup {
    num_rows: i64,
    chunks: Vec<Chunk>,
}

#[derive(Default)]
struct Chunk {
    num_values: i64,
    null_count: Option<i64>,
    is_encrypted: bool,
}

fn row_group(thrift: &mut Thrift<'_>) -> Result<RowGroup, String> {
    let mut group = RowGroup {
        num_rows: -1,
        chunks: Vec::new(),
    };
    thrift.fields(1, |thrift, field, kind| {
        match (field, kind) {
            (1, Kind::List) => group.chunks = thrift.list(2, chunk)?,
            (3, Kind::Number) => group.num_rows = thrift.zigzag()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(group)
}

fn chunk(thrift: &mut Thrift<'_>) -> Result<Chunk, String> {
    let mut chunk = Chunk {
        num_values: -1,
        ..Chunk::default()
    };
    thrift.fields(2, |thrift, field, kind| {
        match (field, kind) {
            (3, Kind::Struct) => thrift.fields(3, |thrift, field, kind| {
                match (field, kind) {
                    (5, Kind::Number) => chunk.num_values = thrift.zigzag()?,
                    (12, Kind::Struct) => thrift.fields(4, |thrift, field, kind| {
                        match (field, kind) {
                            (3, Kind::Number) => chunk.null_count = Some(thrift.zigzag()?),
                            _ => return Ok(false),
                        }
                        Ok(true)
                    })?,
                    _ => return Ok(false),
                }
                Ok(true)
            })?,
            (8, Kind::Struct) | (9, Kind::Binary) => {
                chunk.is_encrypted = true;
                return Ok(false);
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(chunk)
}

struct Element {
    name: String,
    repetition: i64, // 0: required, 1: optional, 2: repeated
    num_children: i64,
}

fn schema(thrift: &mut Thrift<'_>) -> Result<Vec<Leaf>, String> {
    let elements = thrift.list(1, |thrift| {
        let mut name = None;
        let (mut repetition, mut num_children) = (0, 0);
        thrift.fields(1, |thrift, field, kind| {
            match (field, kind) {
                (3, Kind::Number) => repetition = thrift.zigzag()?,
                (4, Kind::Binary) => name = Some(thrift.binary()?),
                (5, Kind::Number) => num_children = thrift.zigzag()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let name = name.ok_or_else(damaged)?;
        let name = std::str::from_utf8(name).map_err(|_| {
            let shown = name.escape_ascii();
            format!("the column \"{shown}\" has a name that is not UTF-8: rename it")
        })?;
        Ok(Element {
            name: name.to_owned(),
            repetition,
            num_children,
        })
    })?;
    let mut leaves = Vec::new();
    let mut rest = elements.iter();
    let root = rest.next().ok_or_else(damaged)?;
    for _ in 0..root.num_children {
        push_leaves(&mut rest, "", (false, false), 0, &mut leaves)?;
    }
    match rest.next() {
        Some(_) => Err(damaged()),
        None => Ok(leaves),
    }
}

fn push_leaves<'a>(
    rest: &mut impl Iterator<Item = &'a Element>,
    prefix: &str,
    (is_nullable, is_repeated): (bool, bool),
    depth: usize,
    leaves: &mut Vec<Leaf>,
) -> Result<(), String> {
    let element = rest
        .next()
        .filter(|_| depth < MAX_DEPTH)
        .ok_or_else(damaged)?;
    let path = format!("{prefix}{}", element.name);
    let is_nullable = is_nullable || element.repetition != 0;
    let is_repeated = is_repeated || element.repetition == 2;
    if element.num_children <= 0 {
        leaves.push(Leaf {
            path,
            may_be_null: false,
            is_nullable,
            is_repeated,
        });
        return Ok(());
    }
    let prefix = format!("{path}.");
    for _ in 0..element.num_children {
        push_leaves(rest, &prefix, (is_nullable, is_repeated), depth + 1, leaves)?;
    }
    Ok(())
}

fn damaged() -> String {
    "its footer is damaged".to_owned()
}

/// A type of Thrift's, as far as fields are told apart here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Truth,
    Byte,
    Number,
    Double,
    Binary,
    List,
    Map,
    Struct,
}

/// Reads Thrift's compact protocol. Nothing that it says is trusted.
struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Thrift<'a> {
    /// Calls `each` with the fields of a struct; it returns false to have a field left out.
    fn fields(
        &mut self,
        depth: usize,
        mut each: impl FnMut(&mut Thrift<'a>, i64, Kind) -> Result<bool, String>,
    ) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(damaged());
        }
        let mut number = 0_i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            number = match head >> 4 {
                0 => self.zigzag()?,
                step => number.saturating_add(i64::from(step)),
            };
            let kind = kind(head & 0x0f)?;
            if !each(self, number, kind)? {
                self.skip(kind, false, depth)?;
            }
        }
    }

    /// Reads a list of structs.
    fn list<T>(
        &mut self,
        depth: usize,
        mut each: impl FnMut(&mut Thrift<'a>) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let (count, of) = self.list_head()?;
        if count > 0 && of != Kind::Struct || depth > MAX_DEPTH {
            return Err(damaged());
        }
        (0..count).map(|_| each(self)).collect()
    }

    fn list_head(&mut self) -> Result<(usize, Kind), String> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            few => u64::from(few),
        };
        let count = usize::try_from(count).map_err(|_| damaged())?;
        if count > self.bytes.len() - self.at {
            return Err(damaged()); // each takes a byte at least
        }
        let of = if count == 0 && head & 0x0f == 0 {
            Kind::Byte
        } else {
            kind(head & 0x0f)?
        };
        Ok((count, of))
    }

    fn skip(&mut self, kind: Kind, is_in_list: bool, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(damaged());
        }
        match kind {
            Kind::Truth if !is_in_list => {} // the type of the field is its value
            Kind::Truth | Kind::Byte => {
                self.byte()?;
            }
            Kind::Number => {
                self.varint()?;
            }
            Kind::Double => {
                self.take(8)?;
            }
            Kind::Binary => {
                self.binary()?;
            }
            Kind::List => {
                let (count, of) = self.list_head()?;
                for _ in 0..count {
                    self.skip(of, true, depth + 1)?;
                }
            }
            Kind::Map => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                let (key, value) = (self::kind(kinds >> 4)?, self::kind(kinds & 0x0f)?);
                for _ in 0..count {
                    self.skip(key, true, depth + 1)?;
                    self.skip(value, true, depth + 1)?;
                }
            }
            Kind::Struct => self.fields(depth + 1, |_, _, _| Ok(false))?,
        }
        Ok(())
    }

    fn binary(&mut self) -> Result<&'a [u8], String> {
        let count = self.varint()?;
        self.take(usize::try_from(count).map_err(|_| damaged())?)
    }

    fn zigzag(&mut self) -> Result<i64, String> {
        let number = self.varint()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(damaged())
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.take(1)?[0])
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(count).ok_or_else(damaged)?;
        let found = self.bytes.get(self.at..end).ok_or_else(damaged)?;
        self.at = end;
        Ok(found)
    }
}

fn kind(code: u8) -> Result<Kind, String> {
    match code {
        1 | 2 => Ok(Kind::Truth),
        3 => Ok(Kind::Byte),
        4..=6 => Ok(Kind::Number),
        7 => Ok(Kind::Double),
        8 => Ok(Kind::Binary),
        9 | 10 => Ok(Kind::List),
        11 => Ok(Kind::Map),
        12 => Ok(Kind::Struct),
        _ => Err(damaged()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(step: u8, kind: u8, value: &[u8]) -> Vec<u8> {
        [&[step << 4 | kind][..], value].concat()
    }

    /// A file of one optional column `a` with one row group of three rows.
    fn footer(num_values: u8, name: &[u8], is_encrypted: bool) -> Vec<u8> {
        let text = |word: &[u8]| [&[word.len() as u8][..], word].concat();
        let root = [field(4, 8, &text(b"root")), field(1, 5, &[2]), vec![0]].concat();
        let leaf = [
            field(1, 5, &[4]), // type
            field(2, 5, &[2]), // repetition: optional
            field(1, 8, &text(name)),
            vec![0],
        ]
        .concat();
        let schema = [vec![0x2c], root, leaf].concat();
        let statistics = field(7, 12, &[field(3, 6, &[0]), vec![0]].concat());
        let inner = [field(5, 6, &[2 * num_values]), statistics, vec![0]].concat();
        let crypto = if is_encrypted {
            field(5, 12, &[0])
        } else {
            Vec::new()
        };
        let chunk = [field(3, 12, &inner), crypto, vec![0]].concat();
        let group = [
            field(1, 9, &[vec![0x1c], chunk].concat()),
            field(2, 6, &[6]),
            vec![0],
        ];
        let groups = [vec![0x1c], group.concat()].concat();
        [
            field(1, 5, &[2]),
            field(1, 9, &schema),
            field(1, 6, &[6]),
            field(1, 9, &groups),
            vec![0],
        ]
        .concat()
    }

    #[test]
    fn a_footer_tells_its_columns_and_what_is_wrong_with_it() {
        let found = read_footer(&footer(3, b"a", false)).unwrap();
        assert_eq!((found[0].path.as_str(), found[0].may_be_null), ("a", false));
        for (bytes, said) in [
            (
                footer(0, b"a", false),
                "column \"a\" in row group 0: its footer says 0 values",
            ),
            (
                footer(3, b"a", true),
                "column \"a\" in row group 0: it is encrypted",
            ),
            (
                footer(3, b"\xe9", false),
                "\"\\xe9\" has a name that is not UTF-8",
            ),
        ] {
            let error = read_footer(&bytes).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn pages_have_as_many_values_as_the_footer_says() {
        let page = |values: u8| {
            let header = field(2, 12, &[field(1, 5, &[2 * values]), vec![0]].concat());
            [field(3, 5, &[4]), header, vec![0], vec![7, 7]].concat()
        };
        let dictionary = [field(3, 5, &[2]), vec![0], vec![7]].concat();
        let two = [dictionary, page(3), page(2)].concat();
        assert_eq!(check_pages(&two, 5), Ok(()));
        for wrong in [[page(4), page(2)].concat(), [page(2), page(2)].concat()] {
            let said = check_pages(&wrong, 5).unwrap_err();
            assert!(said.contains("values, and its footer says 5"), "{said}");
        }
        for end in 1..page(3).len() {
            assert!(check_pages(&page(3)[..end], 3).is_err());
        }
    }

    #[test]
    fn a_footer_that_is_cut_or_damaged_is_refused_and_never_panics() {
        let whole = footer(3, b"a", false);
        for end in 0..whole.len() {
            assert!(read_footer(&whole[..end]).is_err());
            for byte in 0..=255 {
                let mut damaged = whole.clone();
                damaged[end] = byte;
                let _ = read_footer(&damaged);
            }
        }
    }
}
