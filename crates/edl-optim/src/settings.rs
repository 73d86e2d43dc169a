//! The settings of an optimizer, checked as they are read.

use std::collections::BTreeMap;

use thiserror::Error;

/// A setting is outside its range.
#[derive(Debug, Error, Clone, PartialEq)]
#[error("setting '{name}' of optimizer '{kind}' must be {expected}, found {found}")]
pub struct BadSetting {
    /// The optimizer's name.
    pub kind: String,
    /// The setting given.
    pub name: &'static str,
    /// The allowed values, in words.
    pub expected: &'static str,
    /// Its value.
    pub found: f64,
}

/// Reads the settings of one optimizer, checking each.
pub(crate) struct Settings<'a> {
    pub(crate) kind: &'a str,
    pub(crate) params: &'a BTreeMap<String, f64>,
}

impl Settings<'_> {
    pub(crate) fn checked(
        &self,
        name: &'static str,
        default: f64,
        expected: &'static str,
        holds: impl Fn(f64) -> bool,
    ) -> Result<f64, BadSetting> {
        let found = self.params.get(name).copied().unwrap_or(default);
        if found.is_finite() && holds(found) {
            return Ok(found);
        }
        Err(BadSetting {
            kind: self.kind.to_owned(),
            name,
            expected,
            found,
        })
    }

    pub(crate) fn not_negative(&self, name: &'static str, default: f64) -> Result<f64, BadSetting> {
        self.checked(name, default, "0 or more", |x| x >= 0.0)
    }

    pub(crate) fn share(&self, name: &'static str, default: f64) -> Result<f64, BadSetting> {
        self.checked(name, default, "between 0 and 1", |x| {
            (0.0..=1.0).contains(&x)
        })
    }

    pub(crate) fn flag(&self, name: &'static str) -> Result<bool, BadSetting> {
        let value = self.checked(name, 0.0, "0 or 1", |x| x == 0.0 || x == 1.0)?;
        Ok(value == 1.0)
    }
}
