//! A request in JSON becomes columns of numbers and text, or is refused in words.
//!
//! Nothing is made of the text but the columns, so a request takes a few times its bytes at the most.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;

use self::value::Value;
use crate::error::RequestError;

mod value;

/// No message is longer, whatever it quotes.
const MOST_LETTERS: usize = 300;
const FORMS: &str = r#"one of {"instances": [...]}, {"instance": ...} and {"inputs": {...}}"#;

/// The kind of a feature's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whole numbers.
    Whole,
    /// Whole numbers that are not negative.
    Unsigned,
    /// Any numbers.
    Real,
    /// True or false.
    Truth,
    /// Text.
    Text,
}

/// A feature that a model takes.
#[derive(Clone, Debug)]
pub struct Feature {
    /// Its name.
    pub name: String,
    /// The name of its type, for messages.
    pub dtype: String,
    /// The kind of its values.
    pub kind: Kind,
    /// The shape of one record; None where it may be of any length, the same for all records.
    pub shape: Vec<Option<usize>>,
}

/// The values of a feature, of all records.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// The values of `Kind::Whole`, and of `Kind::Truth`: 0 or 1.
    Whole(Vec<i64>),
    /// Of `Kind::Unsigned`.
    Unsigned(Vec<u64>),
    /// Of `Kind::Real`.
    Real(Vec<f64>),
    /// Of `Kind::Text`.
    Text {
        /// All texts, one after the other.
        data: String,
        /// Where each ends.
        ends: Vec<usize>,
    },
}

/// The values of one feature in a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// The values, record by record.
    pub values: Values,
    /// The number of records, and the shape of each.
    pub shape: Vec<usize>,
}

/// The contents of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The values of each feature, in the order of the features.
    pub columns: Vec<Column>,
    /// Whether it is a single record, not a list of them.
    pub is_single: bool,
}

impl Request {
    /// Reads `{"instances": [RECORD, ...]}`, `{"instance": RECORD}` or `{"inputs": {NAME: [...]}}`.
    ///
    /// A record is `{NAME: VALUE}`, or the value alone where there is one feature.
    ///
    /// # Errors
    /// The text is something else, has too many records, or values that are none of their feature.
    pub fn parse(
        content: &[u8],
        features: &[Feature],
        most_records: usize,
    ) -> Result<Request, RequestError> {
        let text = std::str::from_utf8(content)
            .map_err(|error| RequestError::Wrong(format!("the request is no JSON: {error}")))?;
        let mut table = Table::of(features, most_records);
        let mut json = serde_json::Deserializer::from_str(text);
        let parsed = json.deserialize_any(Forms(&mut table));
        let parsed = parsed.and_then(|form| json.end().map(|()| form));
        let form = parsed.map_err(|error| {
            let words = match error.classify() {
                Category::Data => error.to_string(),
                Category::Syntax | Category::Eof | Category::Io => {
                    format!("the request is no JSON: {error}")
                }
            };
            let words = words.chars().take(MOST_LETTERS).collect();
            if table.is_too_long {
                RequestError::TooLarge(words)
            } else {
                RequestError::Wrong(words)
            }
        })?;
        Ok(Request {
            is_single: form == Form::Instance,
            columns: table.columns.into_iter().map(Building::finish).collect(),
        })
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Instances,
    Instance,
    Inputs,
}

/// The values that were read so far.
struct Table<'a> {
    features: &'a [Feature],
    columns: Vec<Building>,
    most_records: usize,
    is_too_long: bool,
}

struct Building {
    values: Values,
    /// The known part of a record's shape.
    dims: Vec<Option<usize>>,
    num_records: usize,
}

impl Building {
    fn of(feature: &Feature) -> Building {
        Building {
            values: match feature.kind {
                Kind::Whole | Kind::Truth => Values::Whole(Vec::new()),
                Kind::Unsigned => Values::Unsigned(Vec::new()),
                Kind::Real => Values::Real(Vec::new()),
                Kind::Text => Values::Text {
                    data: String::new(),
                    ends: Vec::new(),
                },
            },
            dims: feature.shape.clone(),
            num_records: 0,
        }
    }

    fn finish(self) -> Column {
        let dims = self.dims.into_iter().map(Option::unwrap_or_default);
        Column {
            values: self.values,
            shape: std::iter::once(self.num_records).chain(dims).collect(),
        }
    }
}

impl<'a> Table<'a> {
    fn of(features: &'a [Feature], most_records: usize) -> Table<'a> {
        Table {
            features,
            columns: features.iter().map(Building::of).collect(),
            most_records,
            is_too_long: false,
        }
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.features.iter().map(|f| &*f.name).collect();
        names.join(", ")
    }

    fn place<E: Error>(&self, name: &str) -> Result<usize, E> {
        let found = self.features.iter().position(|f| f.name == name);
        found.ok_or_else(|| {
            E::custom(format_args!(
                "there is no feature {name:?}; the model takes {}",
                self.names()
            ))
        })
    }

    /// The one feature there is.
    fn only<E: Error>(&self) -> Result<usize, E> {
        if self.features.len() == 1 {
            return Ok(0);
        }
        Err(E::custom(format_args!(
            "expected records with the features {}",
            self.names()
        )))
    }

    fn check_number<E: Error>(&mut self, record: usize) -> Result<(), E> {
        if record < self.most_records {
            return Ok(());
        }
        self.is_too_long = true;
        Err(E::custom(format_args!(
            "expected at most {} records in a request, found more",
            self.most_records
        )))
    }
}

struct Forms<'t, 'a>(&'t mut Table<'a>);

impl<'de> Visitor<'de> for Forms<'_, '_> {
    type Value = Form;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(FORMS)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Form, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            let form = match &*key {
                "instances" => Form::Instances,
                "instance" => Form::Instance,
                "inputs" => Form::Inputs,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if found.replace(form).is_some() {
                return Err(A::Error::custom(format_args!("expected {FORMS}")));
            }
            let table = &mut *self.0;
            match form {
                Form::Instances => map.next_value_seed(Records(table))?,
                Form::Instance => map.next_value_seed(Value::record(table, 0))?,
                Form::Inputs => map.next_value_seed(Inputs(table))?,
            }
        }
        found.ok_or_else(|| A::Error::custom(format_args!("expected {FORMS}")))
    }
}

/// A list of records.
struct Records<'t, 'a>(&'t mut Table<'a>);

impl<'de> DeserializeSeed<'de> for Records<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Records<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(r#"a list of records in "instances""#)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut records: A) -> Result<(), A::Error> {
        let mut record = 0;
        while records
            .next_element_seed(Value::record(self.0, record))?
            .is_some()
        {
            record += 1;
        }
        if record == 0 {
            return Err(A::Error::custom(
                r#""instances": expected a list of records, found none"#,
            ));
        }
        Ok(())
    }
}

/// Columns by their names, or the one there is.
struct Inputs<'t, 'a>(&'t mut Table<'a>);

impl<'de> DeserializeSeed<'de> for Inputs<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Inputs<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(r#"{NAME: [...]} in "inputs""#)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, values: A) -> Result<(), A::Error> {
        let at = self.0.only()?;
        Inputs::column(self.0, at, values)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let table = self.0;
        let mut given = vec![false; table.features.len()];
        while let Some(name) = map.next_key::<String>()? {
            let at = table.place(&name)?;
            if std::mem::replace(&mut given[at], true) {
                return Err(A::Error::custom(format_args!(
                    "feature {name:?} is given twice"
                )));
            }
            map.next_value_seed(List(&mut *table, at))?;
        }
        if let Some(at) = given.iter().position(|is_given| !is_given) {
            return Err(A::Error::custom(format_args!(
                "feature {:?} is missing; the model takes {}",
                table.features[at].name,
                table.names()
            )));
        }
        let numbers = table.columns.iter().map(|column| column.num_records);
        let numbers: Vec<usize> = numbers.collect();
        if numbers.iter().any(|number| *number != numbers[0]) {
            return Err(A::Error::custom(format_args!(
                "expected as many values of each feature, found {numbers:?} of {}",
                table.names()
            )));
        }
        Ok(())
    }
}

impl Inputs<'_, '_> {
    fn column<'de, A: SeqAccess<'de>>(
        table: &mut Table<'_>,
        at: usize,
        mut values: A,
    ) -> Result<(), A::Error> {
        for record in 0.. {
            let value = Value::of(table, at, record);
            if values.next_element_seed(value)?.is_none() {
                break;
            }
        }
        Ok(())
    }
}

/// The values of a feature.
struct List<'t, 'a>(&'t mut Table<'a>, usize);

impl<'de> DeserializeSeed<'de> for List<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for List<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.0.features[self.1].name;
        write!(formatter, "a list of the values of feature {name:?}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, values: A) -> Result<(), A::Error> {
        Inputs::column(self.0, self.1, values)
    }
}

#[cfg(test)]
mod tests {
    use super::{Feature, Kind, Request, Values};
    use crate::error::RequestError;

    fn features() -> Vec<Feature> {
        let feature = |name: &str, dtype: &str, kind, shape: &[Option<usize>]| Feature {
            name: name.to_owned(),
            dtype: dtype.to_owned(),
            kind,
            shape: shape.to_vec(),
        };
        vec![
            feature("ids", "int64", Kind::Whole, &[None]),
            feature("age", "float32", Kind::Real, &[Some(1)]),
            feature("word", "str", Kind::Text, &[]),
        ]
    }

    #[test]
    fn records_and_columns_are_the_same() {
        let records = br#"{"instances": [{"ids": [1, 2], "age": 0.1, "word": "\u00e9"},
            {"word": "b", "age": [-2], "ids": [3, -9223372036854775808]}], "more": [[{}]]}"#;
        let columns = br#"{"inputs": {"age": [[0.1], -2], "word": ["\u00e9", "b"],
            "ids": [[1, 2], [3, -9223372036854775808]]}}"#;
        let found = Request::parse(records, &features(), 2).unwrap();
        assert_eq!(found, Request::parse(columns, &features(), 2).unwrap());
        let [ids, age, word] = &found.columns[..] else {
            panic!("three columns")
        };
        assert_eq!(ids.values, Values::Whole(vec![1, 2, 3, i64::MIN]));
        assert_eq!(ids.shape, [2, 2]);
        assert_eq!(age.values, Values::Real(vec![0.1, -2.0]));
        assert_eq!(age.shape, [2, 1]);
        let Values::Text { data, ends } = &word.values else {
            panic!("text")
        };
        assert_eq!((&**data, &ends[..]), ("éb", &[2, 3][..]));
    }

    #[test]
    fn too_many_records_are_too_large() {
        let three = br#"{"inputs": [1, 2, 3]}"#;
        let only = [Feature {
            shape: vec![],
            ..features().remove(0)
        }];
        assert!(Request::parse(three, &only, 3).is_ok());
        let error = Request::parse(three, &only, 2).unwrap_err();
        assert!(matches!(error, RequestError::TooLarge(_)), "{error}");
    }
}
