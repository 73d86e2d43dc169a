//! The value of a feature of a record.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};

use super::{Kind, Table, Values};

/// The value of a feature, or of all: a record.
pub(super) struct Value<'t, 'a> {
    table: &'t mut Table<'a>,
    feature: Option<usize>,
    record: usize,
    axis: usize,
}

impl<'t, 'a> Value<'t, 'a> {
    pub(super) fn record(table: &'t mut Table<'a>, record: usize) -> Value<'t, 'a> {
        Value {
            table,
            feature: None,
            record,
            axis: 0,
        }
    }

    pub(super) fn of(table: &'t mut Table<'a>, feature: usize, record: usize) -> Value<'t, 'a> {
        Value {
            table,
            feature: Some(feature),
            record,
            axis: 0,
        }
    }

    fn place<E: Error>(&self) -> Result<usize, E> {
        self.feature.map_or_else(|| self.table.only(), Ok)
    }

    fn wrong<E: Error>(&self, found: impl fmt::Display) -> E {
        let at = match self.place::<E>() {
            Ok(at) => at,
            Err(error) => return error,
        };
        let feature = &self.table.features[at];
        let expected = match feature.shape.get(self.axis) {
            Some(Some(length)) => format!("a list of {length}"),
            Some(None) => "a list".to_owned(),
            None => match feature.kind {
                Kind::Whole | Kind::Unsigned => {
                    format!("integers of {}", feature.dtype)
                }
                Kind::Real => format!("numbers of {}", feature.dtype),
                Kind::Truth => "true or false".to_owned(),
                Kind::Text => "text".to_owned(),
            },
        };
        E::custom(format_args!(
            "record {}, feature {:?}: expected {expected}, found {found}",
            self.record, feature.name
        ))
    }

    /// The values to add a number or text to, once that may stand here.
    fn values<E: Error>(&mut self, found: &dyn fmt::Display) -> Result<(&mut Values, Kind), E> {
        let at = self.place()?;
        let feature = &self.table.features[at];
        let is_of_one = feature.shape == [Some(1)] && self.axis == 0;
        if !is_of_one && self.axis < feature.shape.len() {
            return Err(self.wrong(found));
        }
        let kind = feature.kind;
        if self.axis == 0 {
            self.table.check_number(self.record)?;
            self.table.columns[at].num_records += 1;
        }
        Ok((&mut self.table.columns[at].values, kind))
    }

    /// The error for a value of another type; a single value of a list of one has the list's type.
    fn of_another_type<E: Error>(mut self, found: impl fmt::Display) -> E {
        if let Ok(at) = self.place::<E>() {
            self.axis = self.table.features[at].shape.len();
        }
        self.wrong(found)
    }

    fn features<'de, A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Value { table, record, .. } = self;
        table.check_number(record)?;
        while let Some(name) = map.next_key::<String>()? {
            let at = table.place(&name)?;
            if table.columns[at].num_records > record {
                return Err(A::Error::custom(format_args!(
                    "record {record}: feature {name:?} is given twice"
                )));
            }
            map.next_value_seed(Value::of(&mut *table, at, record))?;
        }
        let missing = table.columns.iter().position(|c| c.num_records <= record);
        missing.map_or(Ok(()), |at| {
            Err(A::Error::custom(format_args!(
                "record {record}: feature {:?} is missing; the model takes {}",
                table.features[at].name,
                table.names()
            )))
        })
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value of a feature")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        if self.feature.is_none() {
            return self.features(map);
        }
        Err(self.wrong("an object"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        let at = self.place()?;
        let Value {
            table,
            record,
            axis,
            feature,
        } = self;
        let again = |table| Value {
            table,
            feature,
            record,
            axis,
        };
        if axis >= table.features[at].shape.len() {
            return Err(again(table).wrong("a list"));
        }
        if axis == 0 {
            table.check_number(record)?;
            table.columns[at].num_records += 1;
        }
        let known = table.columns[at].dims[axis];
        let mut length = 0;
        loop {
            let inner = Value {
                table: &mut *table,
                feature: Some(at),
                record,
                axis: axis + 1,
            };
            if values.next_element_seed(inner)?.is_none() {
                break;
            }
            length += 1;
            if known.is_some_and(|known| length > known) {
                break;
            }
        }
        match known {
            Some(known) if known != length => {
                let why = match table.features[at].shape[axis] {
                    Some(_) => "",
                    None => ", as the lists before have",
                };
                let found = match length > known {
                    true => "more".to_owned(),
                    false => length.to_string(),
                };
                Err(A::Error::custom(format_args!(
                    "record {record}, feature {:?}: expected {known} values{why}, found {found}",
                    table.features[at].name
                )))
            }
            Some(_) => Ok(()),
            None => {
                table.columns[at].dims[axis] = Some(length);
                Ok(())
            }
        }
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Err(self.wrong("null"))
    }

    fn visit_bool<E: Error>(mut self, value: bool) -> Result<(), E> {
        match self.values(&value)? {
            (Values::Whole(values), Kind::Truth) => values.push(i64::from(value)),
            _ => return Err(self.of_another_type(value)),
        }
        Ok(())
    }

    fn visit_i64<E: Error>(mut self, value: i64) -> Result<(), E> {
        match self.values(&value)? {
            (Values::Whole(values), Kind::Whole) => values.push(value),
            (Values::Real(values), _) => values.push(value as f64),
            _ => return Err(self.of_another_type(value)),
        }
        Ok(())
    }

    fn visit_u64<E: Error>(mut self, value: u64) -> Result<(), E> {
        match (self.values(&value)?, i64::try_from(value)) {
            ((Values::Whole(values), Kind::Whole), Ok(whole)) => values.push(whole),
            ((Values::Whole(values), Kind::Truth), Ok(whole @ (0 | 1))) => values.push(whole),
            ((Values::Unsigned(values), _), _) => values.push(value),
            ((Values::Real(values), _), _) => values.push(value as f64),
            _ => return Err(self.of_another_type(value)),
        }
        Ok(())
    }

    fn visit_f64<E: Error>(mut self, value: f64) -> Result<(), E> {
        match self.values(&value)? {
            (Values::Real(values), _) => values.push(value),
            _ => return Err(self.of_another_type(format_args!("{value:?}"))),
        }
        Ok(())
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<(), E> {
        let found = Unexpected::Str(if text.len() > 60 { "a long one" } else { text });
        match self.values(&found)? {
            (Values::Text { data, ends }, _) => {
                data.push_str(text);
                ends.push(data.len());
            }
            _ => return Err(self.of_another_type(found)),
        }
        Ok(())
    }
}
