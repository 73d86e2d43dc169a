//! The life cycle as a model declares it for a table.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::sketch::NUM_ROWS;
use crate::features::statistics::Limit;
use crate::route::NUM_HASH_SLOTS;

/// The largest count that a candidate's entry holds.
const MAX_COUNT: u64 = 1 << 27;

/// The largest count that a cell of a sketch holds.
const MAX_SKETCH_COUNT: u64 = u8::MAX as u64;

/// Bytes of the smallest sketch: one cell of each row for each hash slot.
const MIN_SKETCH_BYTES: u64 = NUM_HASH_SLOTS as u64 * NUM_ROWS as u64;

/// Bytes of the largest sketch: a cell is found by 16 bits of a hash.
const MAX_SKETCH_BYTES: u64 = MIN_SKETCH_BYTES << 16;

/// The rule by which a key of a table gets a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdmissionSpec {
    /// "count", "sketch", "probability" or "statistic".
    pub kind: String,
    /// count; count, bytes; probability; table, column, limit.
    #[serde(default)]
    pub params: BTreeMap<String, f64>,
}

/// The rule by which a row of a table is removed: as soon as one condition holds in a pass.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpirySpec {
    /// It was not updated in so many updates of the model.
    #[serde(default)]
    pub steps: Option<u64>,
    /// It was not updated in so many days.
    #[serde(default)]
    pub days: Option<f64>,
    /// The L2 norm of its weights is below this.
    #[serde(default)]
    pub min_norm: Option<f64>,
    /// Updates of the model since a row's first one before it goes by its norm; 0 if not given.
    #[serde(default)]
    pub grace_steps: Option<u64>,
    /// A statistic of its key is below this.
    #[serde(default)]
    pub statistic: Option<StatisticSpec>,
}

/// A statistic of a key, and a limit that it is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StatisticSpec {
    /// The number of the table of statistics, which may be the one that this is said of.
    pub table: u32,
    /// The index of the float in a row.
    pub column: u32,
    /// The limit.
    pub limit: f64,
}

impl StatisticSpec {
    fn parse(&self) -> Result<Limit, String> {
        if self.limit > 0.0 && self.limit.is_finite() {
            return Ok(Limit {
                table: self.table as usize,
                column: self.column as usize,
                limit: self.limit as f32,
            });
        }
        Err(format!(
            "the limit of a statistic must be above 0, found {}",
            self.limit
        ))
    }
}

/// Admission, checked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Admission {
    /// In the n-th minibatch with the key; each key is counted by itself.
    Count { count: u32 },
    /// The same, counted by a sketch with this many cells in each row of a slot.
    Sketch { count: u8, cells: u32 },
    /// Each minibatch that has the key admits it with this probability, times 2^64.
    Probability { threshold: u64 },
    /// In the minibatch in which a statistic of the key reaches the limit.
    Statistic(Limit),
}

/// Expiry, checked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Expiry {
    pub(crate) steps: Option<u64>,
    pub(crate) seconds: Option<u64>,
    /// The square of `min_norm`.
    pub(crate) min_square: Option<f64>,
    /// Updates since its first one before a row goes by its norm.
    pub(crate) grace: u64,
    /// A row goes when a statistic of its key is below this.
    pub(crate) statistic: Option<Limit>,
}

impl AdmissionSpec {
    pub(crate) fn parse(&self) -> Result<Admission, String> {
        let names: &[&str] = match self.kind.as_str() {
            "count" => &["count"],
            "sketch" => &["count", "bytes"],
            "probability" => &["probability"],
            "statistic" => &["table", "column", "limit"],
            other => {
                return Err(format!(
                    "unknown admission '{other}'; known are count, sketch, probability, statistic"
                ));
            }
        };
        if let Some(name) = self.params.keys().find(|n| !names.contains(&n.as_str())) {
            return Err(format!(
                "admission by {} has no setting '{name}'; it has {}",
                self.kind,
                names.join(", ")
            ));
        }
        Ok(match self.kind.as_str() {
            "count" => Admission::Count {
                count: self.whole("count", 2, MAX_COUNT)? as u32,
            },
            "sketch" => Admission::Sketch {
                count: self.whole("count", 2, MAX_SKETCH_COUNT)? as u8,
                cells: (self.whole("bytes", MIN_SKETCH_BYTES, MAX_SKETCH_BYTES)? / MIN_SKETCH_BYTES)
                    as u32,
            },
            "statistic" => {
                let statistic = StatisticSpec {
                    table: self.whole("table", 0, u64::from(u32::MAX))? as u32,
                    column: self.whole("column", 0, u64::from(u32::MAX))? as u32,
                    limit: self.setting("limit")?,
                };
                Admission::Statistic(statistic.parse()?)
            }
            _ => Admission::Probability {
                threshold: self.threshold()?,
            },
        })
    }

    fn setting(&self, name: &str) -> Result<f64, String> {
        let found = self.params.get(name).copied();
        found.ok_or_else(|| format!("admission by {} needs '{name}'", self.kind))
    }

    fn whole(&self, name: &str, least: u64, most: u64) -> Result<u64, String> {
        let found = self.setting(name)?;
        if found.fract() == 0.0 && (least as f64..=most as f64).contains(&found) {
            return Ok(found as u64);
        }
        Err(format!(
            "setting '{name}' of admission by {} must be a whole number from {least} to {most}, \
             found {found}",
            self.kind
        ))
    }

    fn threshold(&self) -> Result<u64, String> {
        let found = self.setting("probability")?;
        if found > 0.0 && found < 1.0 {
            return Ok((found * 2_f64.powi(64)) as u64);
        }
        Err(format!(
            "setting 'probability' of admission must be above 0 and below 1, found {found}"
        ))
    }
}

impl ExpirySpec {
    pub(crate) fn parse(&self) -> Result<Expiry, String> {
        let by_age = self.steps.is_some() || self.days.is_some();
        if !by_age && self.min_norm.is_none() && self.statistic.is_none() {
            return Err("expiry needs at least one of steps, days, min_norm, statistic".to_owned());
        }
        if self.steps == Some(0) {
            return Err("steps of expiry must be 1 or more, found 0".to_owned());
        }
        let positive = |name: &str, value: Option<f64>| match value {
            Some(x) if !(x.is_finite() && x > 0.0) => {
                Err(format!("{name} of expiry must be above 0, found {x}"))
            }
            other => Ok(other),
        };
        let days = positive("days", self.days)?;
        let norm = positive("min_norm", self.min_norm)?;
        Ok(Expiry {
            steps: self.steps,
            // At least a second, or a row could go in the pass that follows its update at once.
            seconds: days.map(|days| ((days * 86_400.0) as u64).max(1)),
            min_square: norm.map(|norm| norm * norm),
            grace: norm.and(self.grace_steps).unwrap_or(0),
            statistic: self.statistic.map(|s| s.parse()).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(kind: &str, params: &[(&str, f64)]) -> Result<Admission, String> {
        let params = params.iter().map(|&(k, v)| (k.to_owned(), v)).collect();
        let kind = kind.to_owned();
        AdmissionSpec { kind, params }.parse()
    }

    #[test]
    fn settings_are_checked_and_the_error_names_them() {
        let refused = |kind, params, said: &str| {
            let error = admission(kind, params).unwrap_err();
            assert!(error.contains(said), "{error}");
        };
        refused("luck", &[], "unknown admission 'luck'");
        refused("count", &[], "needs 'count'");
        refused("count", &[("count", 1.0)], "from 2 to");
        refused("count", &[("count", 2.5)], "whole number");
        refused(
            "count",
            &[("count", 2.0), ("bytes", 9.0)],
            "no setting 'bytes'",
        );
        refused(
            "sketch",
            &[("count", 256.0), ("bytes", 1e6)],
            "from 2 to 255",
        );
        refused(
            "sketch",
            &[("count", 3.0), ("bytes", 1000.0)],
            "from 262144 to",
        );
        refused("probability", &[("probability", 1.0)], "below 1");
        refused("probability", &[("probability", f64::NAN)], "below 1");
        let sketch = admission("sketch", &[("count", 3.0), ("bytes", 1e6)]);
        assert_eq!(sketch, Ok(Admission::Sketch { count: 3, cells: 3 }));
    }

    #[test]
    fn expiry_needs_something_to_go_by() {
        assert!(ExpirySpec::default().parse().is_err());
        let steps = |steps| ExpirySpec {
            steps: Some(steps),
            ..ExpirySpec::default()
        };
        assert!(steps(0).parse().is_err());
        assert!(steps(1).parse().is_ok());
        for bad in [0.0, -1.0, f64::INFINITY, f64::NAN] {
            let days = ExpirySpec {
                days: Some(bad),
                ..ExpirySpec::default()
            };
            assert!(days.parse().is_err(), "{bad}");
        }
    }
}
