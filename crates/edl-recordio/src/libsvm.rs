//! Lines of LIBSVM: a label, and pairs of an index and a value.
//!
//! Blanks (space, tab) are between them, and what follows a `#` is a comment. Numbers are those of
//! [`crate::numbers`].

use crate::csv::{Fault, NumberKind, not_a_number, shown};
use crate::numbers::{real, whole};

/// The contents of lines, one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pairs {
    /// A label for each line.
    pub labels: Vec<f32>,
    /// The end of each line's pairs.
    pub ends: Vec<i64>,
    /// The indices of all pairs.
    pub ids: Vec<i64>,
    /// Their values.
    pub values: Vec<f32>,
}

/// Reads lines.
///
/// # Errors
/// Names the first line that does not parse, and what is wrong with it.
pub fn parse<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Result<Pairs, Fault> {
    let mut pairs = Pairs::default();
    for (line, text) in lines.into_iter().enumerate() {
        pairs.add(text).map_err(|what| Fault {
            line,
            field: None,
            what,
        })?;
    }
    Ok(pairs)
}

impl Pairs {
    fn add(&mut self, line: &[u8]) -> Result<(), String> {
        let line = line.split(|&byte| byte == b'#').next().unwrap_or_default();
        let mut words = line
            .split(|&byte| byte == b' ' || byte == b'\t')
            .filter(|word| !word.is_empty());
        let label = words
            .next()
            .ok_or("expected a label that is a number, found none; remove the line")?;
        let label = float32(label).ok_or_else(|| {
            let found = shown(label);
            format!("expected a label that is a number, found {found}")
        })?;
        self.labels.push(label);
        for word in words {
            let mut parts = word.splitn(2, |&byte| byte == b':');
            let (Some(index), Some(value)) = (parts.next(), parts.next()) else {
                return Err(format!("expected index:value, found {}", shown(word)));
            };
            let wrong = |kind, part| {
                let why = not_a_number(kind, part);
                format!("in {}: {why}", shown(word))
            };
            let id = whole(index).ok_or_else(|| wrong(NumberKind::Int64, index))?;
            self.ids.push(id);
            let value = float32(value).ok_or_else(|| wrong(NumberKind::Float32, value))?;
            self.values.push(value);
        }
        self.ends.push(self.ids.len() as i64);
        Ok(())
    }
}

/// Reads a real number that 32 bits hold.
fn float32(text: &[u8]) -> Option<f32> {
    let number = real(text)?;
    let narrow = number as f32;
    (narrow.is_finite() || !number.is_finite()).then_some(narrow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_pairs_are_read_by_the_rule_of_numbers() {
        let lines = [&b"+1 3:0.5\t7:-2 # 1_2:x"[..], b" 0 ", b"-1.5 -1:1e3"];
        let found = parse(lines).unwrap();
        assert_eq!(found.labels, [1.0, 0.0, -1.5]);
        assert_eq!(found.ends, [2, 2, 3]);
        assert_eq!(found.ids, [3, 7, -1]);
        assert_eq!(found.values, [0.5, -2.0, 1000.0]);
    }

    #[test]
    fn what_is_no_number_or_pair_is_told_with_its_line() {
        for line in [
            "",
            "# all of it",
            "x 1:2",
            "1_0 1:2",
            "1e39",
            "1 2",
            "1 2:",
            "1 :2",
            "1 1_2:3",
            "1 1.0:3",
            "1 9223372036854775808:3",
            "1 1:0x10",
            "1 1:1e39",
            "1 1:2:3",
            "1 qid:4",
            "1 1:2\u{b}2:3",
            "1 1:2\r",
            "1\u{a0}1:2",
        ] {
            let fault = parse([&b"1 1:1"[..], line.as_bytes()]).unwrap_err();
            assert_eq!(fault.line, 1, "{line:?}");
        }
    }
}
