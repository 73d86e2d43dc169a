//! Lines of CSV to fields, as RFC 4180 and TensorFlow's `decode_csv` have them.

use crate::numbers::{TextKind, kind_of, real, whole};

/// The problem of a line, and its field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The number of the line among those that were given.
    pub line: usize,
    /// The number of the field, from 0; `None` if it is of the line as a whole.
    pub field: Option<usize>,
    /// The expected and the found value.
    pub what: String,
}

/// The values of one field of all lines, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextColumn {
    data: Vec<u8>,
    ends: Vec<usize>,
}

/// The rule by which the text of a column becomes numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberKind {
    /// Whole numbers of 64 bits.
    Int64,
    /// Real numbers of 64 bits.
    Float64,
    /// Real numbers that 32 bits hold, too.
    Float32,
}

/// Numbers of a column; where `present` is false there is none.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    /// Of [`NumberKind::Int64`].
    pub wholes: Vec<i64>,
    /// The numbers of the other kinds.
    pub reals: Vec<f64>,
    /// Whether there is a number.
    pub present: Vec<bool>,
}

impl NumberKind {
    /// Tells whether a text is such a number.
    #[must_use]
    pub fn holds(self, text: &[u8]) -> bool {
        match self {
            NumberKind::Int64 => whole(text).is_some(),
            NumberKind::Float64 => real(text).is_some(),
            NumberKind::Float32 => {
                real(text).is_some_and(|number| !number.is_finite() || (number as f32).is_finite())
            }
        }
    }
}

impl TextColumn {
    /// How many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of all values.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Returns the end of each value.
    #[must_use]
    pub fn ends(&self) -> &[usize] {
        &self.ends
    }

    /// The values.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let value = &self.data[start..end];
            start = end;
            value
        })
    }

    /// The widest kind of its values; `None` if all of them are missing.
    #[must_use]
    pub fn kind(&self, missing: &[Vec<u8>]) -> Option<TextKind> {
        let mut widest = None;
        for value in self.iter().filter(|value| !is_missing(value, missing)) {
            widest = widest.max(Some(kind_of(value)));
            if widest == Some(TextKind::Text) {
                break;
            }
        }
        widest
    }

    /// Reads all values as numbers.
    ///
    /// # Errors
    ///
    /// The number of the first value that is none.
    pub fn numbers(&self, kind: NumberKind, missing: &[Vec<u8>]) -> Result<Numbers, usize> {
        let mut found = Numbers {
            wholes: Vec::new(),
            reals: Vec::new(),
            present: Vec::with_capacity(self.len()),
        };
        for (number, value) in self.iter().enumerate() {
            let is_present = !is_missing(value, missing);
            if is_present && !kind.holds(value) {
                return Err(number);
            }
            found.present.push(is_present);
            match kind {
                NumberKind::Int64 => found.wholes.push(whole(value).unwrap_or(0)),
                NumberKind::Float64 | NumberKind::Float32 => {
                    found.reals.push(real(value).unwrap_or(f64::NAN));
                }
            }
        }
        Ok(found)
    }

    fn push(&mut self, value: &[u8]) {
        self.data.extend_from_slice(value);
        self.ends.push(self.data.len());
    }
}

/// Splits lines into columns.
///
/// # Errors
///
/// The first line with another number of fields, quotes that are out of place, a zero byte, a
/// carriage return outside of quotes, or text that is not UTF-8.
pub fn split<'a>(
    lines: impl Iterator<Item = &'a [u8]>,
    delimiter: u8,
    num_fields: usize,
) -> Result<Vec<TextColumn>, Fault> {
    let mut columns = vec![TextColumn::default(); num_fields];
    let mut unescaped = Vec::new();
    for (line, text) in lines.enumerate() {
        let mut found = 0;
        fields(text, delimiter, &mut unescaped, |field, value| {
            found = field + 1;
            if let Some(column) = columns.get_mut(field) {
                column.push(value);
            }
        })
        .map_err(|(field, what)| Fault { line, field, what })?;
        require_fields(line, found, num_fields)?;
    }
    Ok(columns)
}

/// Checks lines in which some fields are numbers, without keeping the values.
///
/// # Errors
///
/// Those of [`split`], a field that is no number of its kind, and a missing field that is required.
pub fn check<'a>(
    lines: impl Iterator<Item = &'a [u8]>,
    delimiter: u8,
    num_fields: usize,
    numbers: &[Option<NumberKind>],
    missing: &[Vec<u8>],
    required: &[usize],
) -> Result<(), Fault> {
    let mut unescaped = Vec::new();
    for (line, text) in lines.enumerate() {
        let mut found = 0;
        let mut wrong = None;
        fields(text, delimiter, &mut unescaped, |field, value| {
            found = field + 1;
            let kind = numbers.get(field).copied().flatten();
            let what = if is_missing(value, missing) {
                let is_required = required.contains(&field);
                is_required.then(|| format!("expected a value, found {}", shown(value)))
            } else {
                kind.filter(|kind| !kind.holds(value))
                    .map(|kind| not_a_number(kind, value))
            };
            wrong = wrong.take().or(what.map(|what| Fault {
                line,
                field: Some(field),
                what,
            }));
        })
        .map_err(|(field, what)| Fault { line, field, what })?;
        require_fields(line, found, num_fields)?;
        if let Some(fault) = wrong {
            return Err(fault);
        }
    }
    Ok(())
}

/// Says that a value is no number of a kind.
#[must_use]
pub fn not_a_number(kind: NumberKind, value: &[u8]) -> String {
    let expected = match kind {
        NumberKind::Int64 => "a whole number (digits with at most a sign, below 2^63)",
        NumberKind::Float64 => "a number (such as -1.5e3, inf or nan)",
        NumberKind::Float32 => "a number that float32 holds (such as -1.5e3, inf or nan)",
    };
    format!("expected {expected}, found {}", shown(value))
}

fn require_fields(line: usize, found: usize, expected: usize) -> Result<(), Fault> {
    if found == expected {
        return Ok(());
    }
    Err(Fault {
        line,
        field: None,
        what: format!("has {found} fields, expected {expected}"),
    })
}

fn is_missing(value: &[u8], missing: &[Vec<u8>]) -> bool {
    missing.iter().any(|word| word == value)
}

/// Calls `each` with the fields of a line, without their quotes.
fn fields(
    text: &[u8],
    delimiter: u8,
    unescaped: &mut Vec<u8>,
    mut each: impl FnMut(usize, &[u8]),
) -> Result<(), (Option<usize>, String)> {
    if let Err(error) = std::str::from_utf8(text) {
        let before = &text[..error.valid_up_to()];
        let field = before.iter().filter(|&&byte| byte == delimiter).count();
        let byte = text[error.valid_up_to()];
        return Err((
            Some(field),
            format!("expected UTF-8, found the byte 0x{byte:02x}; convert the file to UTF-8"),
        ));
    }
    let (mut number, mut at) = (0, 0);
    loop {
        let end = if text.get(at) == Some(&b'"') {
            let end = quoted(text, at, unescaped).ok_or_else(|| {
                let what = "a quote is opened and never closed; if fields have line feeds, give \
                    --data_reader_params=quoted_newlines=true";
                (Some(number), what.to_owned())
            })?;
            if text.get(end).is_some_and(|&byte| byte != delimiter) {
                let what = "a quote inside a quoted field is written twice: \"\"";
                return Err((Some(number), what.to_owned()));
            }
            each(number, unescaped);
            end
        } else {
            let rest = &text[at..];
            let end = rest.iter().position(|&byte| byte == delimiter);
            let value = &rest[..end.unwrap_or(rest.len())];
            if let Some(&byte) = value.iter().find(|byte| b"\"\r\n\0".contains(byte)) {
                let what = match byte {
                    b'"' => {
                        "a quote in a field that does not begin with one; put the field in \
                        quotes, and write the quote twice"
                    }
                    b'\0' => "a zero byte; is it a text file in UTF-8?",
                    _ => "a carriage return or line feed outside of quotes",
                };
                return Err((Some(number), what.to_owned()));
            }
            each(number, value);
            at + value.len()
        };
        if end == text.len() {
            return Ok(());
        }
        at = end + 1;
        number += 1;
    }
}

/// Reads a field in quotes that begins at `at`; returns where it ends.
fn quoted(text: &[u8], at: usize, unescaped: &mut Vec<u8>) -> Option<usize> {
    unescaped.clear();
    let mut from = at + 1;
    loop {
        let end = from + text[from..].iter().position(|&byte| byte == b'"')?;
        unescaped.extend_from_slice(&text[from..end]);
        if text.get(end + 1) != Some(&b'"') {
            return Some(end + 1);
        }
        unescaped.push(b'"');
        from = end + 2;
    }
}

pub(crate) fn shown(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    let short: String = text.chars().take(40).collect();
    let dots = if short.len() < text.len() { "..." } else { "" };
    format!("{short:?}{dots}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(lines: &[&str], n: usize) -> Result<Vec<Vec<String>>, Fault> {
        let found = split(lines.iter().map(|line| line.as_bytes()), b',', n)?;
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        Ok(found.iter().map(|c| c.iter().map(text).collect()).collect())
    }

    #[test]
    fn fields_are_those_of_rfc_4180() {
        let found = columns(&["a,\"b, \"\"c\"\"\",", "\"\",x\ny,\"p\nq\""][..1], 3).unwrap();
        assert_eq!(found, [["a"], ["b, \"c\""], [""]]);
        assert_eq!(columns(&["\"\",\"p\nq\""], 2).unwrap(), [[""], ["p\nq"]]);
        assert_eq!(columns(&[""], 1).unwrap(), [[""]]);
    }

    #[test]
    fn a_line_that_does_not_parse_is_told_with_its_field() {
        for (line, field, said) in [
            ("a,b,c", None, "has 3 fields, expected 2"),
            ("a", None, "has 1 fields, expected 2"),
            ("a,\"b", Some(1), "never closed"),
            ("\"a\"b,c", Some(0), "written twice"),
            ("a\"b,c", Some(0), "does not begin with one"),
            ("a,b\0", Some(1), "zero byte"),
            ("a,b\r", Some(1), "carriage return"),
        ] {
            let fault = columns(&["x,y", line], 2).unwrap_err();
            assert_eq!((fault.line, fault.field), (1, field), "{line:?}");
            assert!(fault.what.contains(said), "{line:?}: {}", fault.what);
        }
        let latin = split([&b"a,caf\xe9"[..]].into_iter(), b',', 2).unwrap_err();
        assert_eq!((latin.line, latin.field), (0, Some(1)));
        assert!(latin.what.contains("0xe9"), "{}", latin.what);
    }

    #[test]
    fn a_column_has_the_widest_kind_of_its_values() {
        let lines = ["1,1,1,NA,NA", "NA,2.5,x,,"].map(str::as_bytes);
        let found = split(lines.into_iter(), b',', 5).unwrap();
        let missing = [b"NA".to_vec(), Vec::new()];
        let kinds: Vec<_> = found.iter().map(|column| column.kind(&missing)).collect();
        let expected = [TextKind::Whole, TextKind::Real, TextKind::Text];
        assert_eq!(kinds[..3], expected.map(Some));
        assert_eq!(kinds[3..], [None, None]);
        let numbers = found[0].numbers(NumberKind::Int64, &missing).unwrap();
        assert_eq!(
            (numbers.wholes, numbers.present),
            (vec![1, 0], vec![true, false])
        );
        assert_eq!(found[1].numbers(NumberKind::Int64, &missing), Err(1));
    }

    #[test]
    fn a_field_that_is_no_number_is_found_without_keeping_the_others() {
        let number = Some(NumberKind::Float32);
        let missing = [Vec::new()];
        let run = |line: &str| {
            let lines = [line.as_bytes()].into_iter();
            check(lines, b',', 2, &[None, number], &missing, &[1])
        };
        assert_eq!(run("1_2,1e3"), Ok(()));
        for line in ["x,1_2", "x,0x10", "x,1e39", "x,"] {
            assert_eq!(run(line).unwrap_err().field, Some(1), "{line:?}");
        }
    }
}
