//! Converts objects of JSON to columns, if every value has the usual form of its column.
//!
//! An accepted object has the values that Python's `json` gives it. A refused object may be right
//! or wrong: `elasticdl/data/messages.py` decides, which has the rule and its words.

use std::borrow::Cow;
use std::fmt;

use ahash::AHashMap;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Python reads no whole number of more digits than 4,300.
const MOST_DIGITS: usize = 4_000;

/// The kind of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whole numbers, none of which is missing.
    Int64,
    /// Any numbers.
    Float64,
    /// Text.
    Text,
}

/// The values of a column, one of each object.
#[derive(Debug, PartialEq)]
pub enum Column {
    /// Of `Kind::Int64`.
    Int64(Vec<i64>),
    /// Of `Kind::Float64`.
    Float64(Vec<f64>),
    /// Of `Kind::Text`.
    Text {
        /// All texts, one after the other.
        data: String,
        /// Where each ends.
        ends: Vec<usize>,
    },
}

/// Reads the columns of some objects; of other keys only that they are JSON is looked at.
///
/// A number that is missing or null is NaN in a column of `Float64`; such a text is empty. None: an
/// object is not of this kind, or it cannot be said here what Python would make of it.
pub fn columns<'a>(
    objects: impl IntoIterator<Item = &'a [u8]>,
    wanted: &[(String, Kind)],
) -> Option<Vec<Column>> {
    let numbers = wanted.iter().enumerate();
    let places: AHashMap<&str, usize> = numbers.map(|(at, (name, _))| (&**name, at)).collect();
    let mut found: Vec<Column> = wanted.iter().map(|(_, kind)| Column::of(*kind)).collect();
    let mut row = Vec::with_capacity(wanted.len());
    for object in objects {
        if has_long_number(object) {
            return None;
        }
        // Unwanted values are not checked for UTF-8 anywhere else.
        let text = std::str::from_utf8(object).ok()?;
        row.clear();
        row.resize(wanted.len(), Value::Missing);
        let mut json = serde_json::Deserializer::from_str(text);
        let into = Row {
            places: &places,
            wanted,
            row: &mut row,
        };
        json.deserialize_map(into).ok()?;
        json.end().ok()?;
        for (column, value) in found.iter_mut().zip(row.drain(..)) {
            column.push(value)?;
        }
    }
    Some(found)
}

fn has_long_number(object: &[u8]) -> bool {
    let mut runs = object.split(|byte| !byte.is_ascii_digit());
    object.len() > MOST_DIGITS && runs.any(|run| run.len() > MOST_DIGITS)
}

#[derive(Clone, Debug)]
enum Value<'de> {
    Missing,
    Int64(i64),
    Float64(f64),
    Text(Cow<'de, str>),
}

impl Column {
    fn of(kind: Kind) -> Column {
        match kind {
            Kind::Int64 => Column::Int64(Vec::new()),
            Kind::Float64 => Column::Float64(Vec::new()),
            Kind::Text => Column::Text {
                data: String::new(),
                ends: Vec::new(),
            },
        }
    }

    fn push(&mut self, value: Value<'_>) -> Option<()> {
        match (self, value) {
            (Column::Int64(values), Value::Int64(value)) => values.push(value),
            (Column::Float64(values), Value::Float64(value)) => values.push(value),
            (Column::Float64(values), Value::Missing) => values.push(f64::NAN),
            (Column::Text { data, ends }, Value::Text(text)) => {
                data.push_str(&text);
                ends.push(data.len());
            }
            (Column::Text { data, ends }, Value::Missing) => ends.push(data.len()),
            (_, Value::Missing | Value::Int64(_) | Value::Float64(_) | Value::Text(_)) => {
                return None;
            }
        }
        Some(())
    }
}

/// An object; of a key that comes twice the last value counts.
struct Row<'a, 'de> {
    places: &'a AHashMap<&'a str, usize>,
    wanted: &'a [(String, Kind)],
    row: &'a mut Vec<Value<'de>>,
}

impl<'de> Visitor<'de> for Row<'_, 'de> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(place) = map.next_key_seed(Key(self.places))? {
            match place {
                Some(at) => self.row[at] = map.next_value_seed(Of(self.wanted[at].1))?,
                None => {
                    map.next_value::<Skipped>()?;
                }
            }
        }
        Ok(())
    }
}

struct Key<'a>(&'a AHashMap<&'a str, usize>);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Option<usize>, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Option<usize>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Option<usize>, E> {
        Ok(self.0.get(name).copied())
    }
}

/// A value that nobody wants. It may not be deeper than 128, as Python may not go so deep, while
/// `IgnoredAny` goes to any depth.
struct Skipped;

impl<'de> Deserialize<'de> for Skipped {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Skipped, D::Error> {
        from.deserialize_any(Skipped)
    }
}

impl<'de> Visitor<'de> for Skipped {
    type Value = Skipped;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Skipped, E> {
        Ok(self)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Skipped, E> {
        Ok(self)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Skipped, E> {
        Ok(self)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Skipped, E> {
        Ok(self)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Skipped, E> {
        Ok(self)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Skipped, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Skipped, A::Error> {
        while values.next_element::<Skipped>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Skipped, A::Error> {
        while map.next_entry::<Skipped, Skipped>()?.is_some() {}
        Ok(self)
    }
}

struct Of(Kind);

impl<'de> DeserializeSeed<'de> for Of {
    type Value = Value<'de>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value<'de>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Of {
    type Value = Value<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a value of {:?}", self.0)
    }

    fn visit_unit<E: Error>(self) -> Result<Value<'de>, E> {
        Ok(Value::Missing)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value<'de>, E> {
        match self.0 {
            Kind::Int64 => Ok(Value::Int64(value)),
            Kind::Float64 => Ok(Value::Float64(value as f64)),
            Kind::Text => Err(E::custom("a number in place of text")),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value<'de>, E> {
        match self.0 {
            Kind::Int64 => i64::try_from(value).map(Value::Int64).map_err(E::custom),
            Kind::Float64 => Ok(Value::Float64(value as f64)),
            Kind::Text => Err(E::custom("a number in place of text")),
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value<'de>, E> {
        // `-0` is the whole number 0 in Python, and `-0.0` is not: here both are this value.
        if self.0 != Kind::Float64 || (value == 0.0 && value.is_sign_negative()) {
            return Err(E::custom("not told apart here"));
        }
        Ok(Value::Float64(value))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Value<'de>, E> {
        match self.0 {
            Kind::Text => Ok(Value::Text(Cow::Borrowed(text))),
            Kind::Int64 | Kind::Float64 => Err(E::custom("text in place of a number")),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value<'de>, E> {
        match self.0 {
            Kind::Text => Ok(Value::Text(Cow::Owned(text.to_owned()))),
            Kind::Int64 | Kind::Float64 => Err(E::custom("text in place of a number")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Column, Kind, columns};

    fn of(objects: &[&str]) -> Option<Vec<Column>> {
        let kinds = [("n", Kind::Int64), ("x", Kind::Float64), ("w", Kind::Text)];
        let wanted = kinds.map(|(name, kind)| (name.to_owned(), kind));
        columns(objects.iter().map(|object| object.as_bytes()), &wanted)
    }

    #[test]
    fn values_are_those_of_their_columns() {
        let found = of(&[
            r#"{"n": 1, "x": 0.1, "w": "a", "more": [1, {"n": 7}]}"#,
            r#" {"w": "\u00e9\n", "x": 18446744073709551615, "n": -9223372036854775808} "#,
            r#"{"n": 3, "n": 4, "x": null, "w": "b", "w": null}"#,
        ]);
        let [
            Column::Int64(n),
            Column::Float64(x),
            Column::Text { data, ends },
        ] = &found.expect("all usual")[..]
        else {
            panic!("other kinds")
        };
        assert_eq!(n, &[1, i64::MIN, 4]);
        assert_eq!(x[..2], [0.1, 18446744073709551615.0]);
        assert!(x[2].is_nan());
        assert_eq!((&**data, &ends[..]), ("aé\n", &[1, 4, 4][..]));
    }

    #[test]
    fn what_is_not_usual_is_left_to_others() {
        let digits = "1".repeat(4_301);
        for object in [
            "",
            "[1]",
            r#"{"n": 1} 2"#,
            r#"{"x": 1}"#,
            r#"{"n": null}"#,
            r#"{"n": 1.0}"#,
            r#"{"n": 9223372036854775808}"#,
            r#"{"n": 1, "x": -0}"#,
            r#"{"n": 1, "x": 1e999}"#,
            r#"{"n": 1, "x": NaN}"#,
            r#"{"n": 1, "x": "1"}"#,
            r#"{"n": 1, "x": true}"#,
            r#"{"n": 1, "w": 1}"#,
            r#"{"n": 1, "w": "\ud800"}"#,
            &format!(r#"{{"n": 1, "more": {digits}}}"#),
            &format!(
                r#"{{"n": 1, "more": {}1{}}}"#,
                "[".repeat(200),
                "]".repeat(200)
            ),
        ] {
            assert_eq!(of(&[object]), None, "{object}");
        }
    }
}
