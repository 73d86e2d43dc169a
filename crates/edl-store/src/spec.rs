//! The parts of a model, as every worker declares it.

use std::collections::BTreeMap;

use edl_optim::{Constraint, Optimizer, ProgramSpec, Statistics};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::features::life::{AdmissionSpec, ExpirySpec};

mod difference;

/// The initial values of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InitializerSpec {
    /// "constant", "uniform", "normal" or "truncated_normal".
    pub kind: String,
    /// value; low, high; mean, stddev.
    #[serde(default)]
    pub params: BTreeMap<String, f64>,
}

/// An optimizer by name and settings; see [`Optimizer::new`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerSpec {
    /// The optimizer's name.
    pub kind: String,
    /// Its settings; flags are 0 or 1.
    #[serde(default)]
    pub params: BTreeMap<String, f64>,
    /// The rule, for the kind "own".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramSpec>,
}

/// The constraint of a vector of weights after each update.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConstraintSpec {
    /// "non_neg" or "norm".
    pub kind: String,
    /// The parameters of "norm": min, max, rate, epsilon.
    #[serde(default)]
    pub params: BTreeMap<String, f64>,
}

/// Type of a table's rows and gradients between worker and replica; the store has float32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireDtype {
    /// The type in which they are stored.
    #[default]
    Float32,
    /// IEEE half precision: 11 significant bits, from 6e-8 to 65504.
    Float16,
    /// The upper half of a float32: 8 significant bits, the same range.
    Bfloat16,
}

/// An embedding table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Unique in the model.
    pub name: String,
    /// Floats in a row's weights.
    pub dim: u32,
    /// The initial values of rows.
    pub initializer: InitializerSpec,
    /// The optimizer of rows.
    pub optimizer: OptimizerSpec,
    /// Ids are below this, if given.
    #[serde(default)]
    pub input_dim: Option<u64>,
    /// How rows travel.
    #[serde(default)]
    pub wire_dtype: WireDtype,
    /// The rule by which a key gets a row; by default its first use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionSpec>,
    /// The rule by which a row is removed; by default rows stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry: Option<ExpirySpec>,
    /// Whether the strings that keys were made of are kept beside their rows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_names: bool,
    /// The constraint of each row, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<ConstraintSpec>,
    /// Whether rows are updated; they are created, read and kept all the same.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub trainable: bool,
    /// Whether every key below `input_dim` begins with a row that a worker gives ([`Store::give`]).
    ///
    /// [`Store::give`]: crate::Store::give
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub given_rows: bool,
    /// The factor of the learning rate.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub rate: f64,
    /// The settings of statistics, if its rows are statistics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<StatisticsSpec>,
}

/// Rows that are decayed sums; the last float is the period that they are decayed to. A pushed row
/// has the same form, and no optimizer updates such rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StatisticsSpec {
    /// The factor of a sum for each period.
    pub decay: f64,
    /// Minibatches of a period, as those who push count them.
    #[serde(default)]
    pub steps: u64,
}

/// The place of a variable in the flat dense or state vector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VariableSpec {
    /// The variable's name.
    pub name: String,
    /// Its shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Its first element.
    pub offset: u64,
    /// Whether the optimizer's weight decay is for it too.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub decays: bool,
    /// The constraint, if given: a dense variable may be split, so it is a constraint of single
    /// elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<ConstraintSpec>,
    /// For a dense variable: whether it is updated; otherwise it keeps its values and slots.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub trainable: bool,
    /// For a state variable: an update sets it to `momentum * old + change`.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub momentum: f64,
    /// For a dense variable: its optimizer, if that is not the model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<OptimizerSpec>,
    /// For a dense variable: the factor of the learning rate.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub rate: f64,
    /// For a dense variable: a gradient of -0.0 alone, which changes no sum, means that there is no
    /// gradient. The variable then rests, and its optimizer does not count the update.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_rest: bool,
}

fn yes() -> bool {
    true
}

fn is_true(flag: &bool) -> bool {
    *flag
}

fn one() -> f64 {
    1.0
}

fn is_one(momentum: &f64) -> bool {
    *momentum == 1.0
}

/// All that the store must know of a model; equal in every worker of a job. Its JSON is that of
/// `ModelDescription` in `elasticdl/backends/base.py`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The embedding tables, by number.
    pub tables: Vec<TableSpec>,
    /// Variables in the dense vector.
    pub dense: Vec<VariableSpec>,
    /// Variables in the state vector.
    pub state: Vec<VariableSpec>,
    /// Updates the dense vector.
    pub optimizer: OptimizerSpec,
    /// From which initial rows are made.
    pub seed: u64,
    /// The clipping of a minibatch's gradient by workers, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<Clip>,
}

/// The clipping of a minibatch's gradient, before it is split between replicas.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Clip {
    /// The L2 norm of each table's rows and of each dense variable is at most this.
    Norm {
        /// The largest norm.
        limit: f32,
    },
    /// The L2 norm of all rows and dense variables together is at most this.
    GlobalNorm {
        /// The largest norm.
        limit: f32,
    },
    /// Each element is at most this, and at least minus this.
    Value {
        /// The largest value.
        limit: f32,
    },
}

impl Clip {
    fn check(&self) -> Result<(), StoreError> {
        let (Self::Norm { limit } | Self::GlobalNorm { limit } | Self::Value { limit }) = self;
        if *limit > 0.0 && limit.is_finite() {
            return Ok(());
        }
        Err(StoreError::BadModel(format!(
            "gradients are clipped to {limit}, expected a number above 0"
        )))
    }
}

/// A row's largest number of floats, slots included: 256 to a segment of the arena.
pub(crate) const MAX_ROW_FLOATS: usize = 1 << 15;

/// The initializers, checked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum InitializerKind {
    Constant { value: f64 },
    Uniform { low: f64, high: f64 },
    Normal { mean: f64, stddev: f64 },
    TruncatedNormal { mean: f64, stddev: f64 },
}

impl InitializerKind {
    /// Return the middle of what a weight may begin with.
    pub(crate) fn centre(self) -> f32 {
        match self {
            Self::Constant { value } => value as f32,
            Self::Uniform { low, high } => ((low + high) / 2.0) as f32,
            Self::Normal { mean, .. } | Self::TruncatedNormal { mean, .. } => mean as f32,
        }
    }
}

impl InitializerSpec {
    /// Return what each weight of a key without a row reads as: the middle of what it may begin
    /// with.
    ///
    /// # Errors
    /// [`StoreError::BadModel`] for an initializer that there is not.
    pub fn centre(&self) -> Result<f32, StoreError> {
        self.parse()
            .map(|kind| kind.centre())
            .map_err(StoreError::BadModel)
    }

    pub(crate) fn parse(&self) -> Result<InitializerKind, String> {
        let names: &[&str] = match self.kind.as_str() {
            "constant" => &["value"],
            "uniform" => &["low", "high"],
            "normal" | "truncated_normal" => &["mean", "stddev"],
            other => {
                return Err(format!(
                    "unknown initializer '{other}'; known are constant, uniform, normal, \
                     truncated_normal"
                ));
            }
        };
        if let Some(name) = self.params.keys().find(|n| !names.contains(&n.as_str())) {
            return Err(format!(
                "initializer '{}' has no setting '{name}'; it has {}",
                self.kind,
                names.join(", ")
            ));
        }
        let get = |name: &str| match self.params.get(name) {
            Some(value) if value.is_finite() => Ok(*value),
            Some(value) => Err(format!(
                "setting '{name}' of initializer '{}' must be finite, found {value}",
                self.kind
            )),
            None => Err(format!("initializer '{}' needs '{name}'", self.kind)),
        };
        Ok(match self.kind.as_str() {
            "constant" => InitializerKind::Constant {
                value: get("value")?,
            },
            "uniform" => InitializerKind::Uniform {
                low: get("low")?,
                high: get("high")?,
            },
            "normal" => InitializerKind::Normal {
                mean: get("mean")?,
                stddev: get("stddev")?,
            },
            _ => InitializerKind::TruncatedNormal {
                mean: get("mean")?,
                stddev: get("stddev")?,
            },
        })
    }
}

impl ConstraintSpec {
    pub(crate) fn parse(&self) -> Result<Constraint, String> {
        let names: &[&str] = match self.kind.as_str() {
            "non_neg" => &[],
            "norm" => &["min", "max", "rate", "epsilon"],
            other => {
                return Err(format!(
                    "unknown constraint '{other}'; known are non_neg, norm"
                ));
            }
        };
        let given: Vec<&str> = self.params.keys().map(String::as_str).collect();
        if let Some(name) = given.iter().find(|name| !names.contains(name)) {
            return Err(format!(
                "constraint '{}' has no setting '{name}'",
                self.kind
            ));
        }
        if self.kind == "non_neg" {
            return Ok(Constraint::NonNegative);
        }
        let get = |name: &str| match self.params.get(name) {
            Some(&value) if value.is_finite() && value >= 0.0 => Ok(value),
            found => Err(format!(
                "constraint 'norm' needs '{name}' of 0 or more, found {found:?}"
            )),
        };
        let (min, max) = (get("min")?, get("max")?);
        if min > max {
            return Err(format!(
                "constraint 'norm' needs min of at most max, found {min} and {max}"
            ));
        }
        Ok(Constraint::Norm {
            min,
            max,
            rate: get("rate")?,
            epsilon: get("epsilon")?,
        })
    }
}

impl StatisticsSpec {
    /// Make the rule by which sums decay.
    ///
    /// # Errors
    /// Says what is wrong with the decay.
    pub fn parse(&self) -> Result<Statistics, String> {
        Statistics::new(self.decay).ok_or_else(|| {
            format!(
                "the decay of statistics must be above 0 and at most 1, found {}",
                self.decay
            )
        })
    }
}

impl OptimizerSpec {
    /// Make the optimizer.
    ///
    /// # Errors
    /// [`StoreError::BadModel`] for an unknown kind or setting, or a value out of range.
    pub fn parse(&self) -> Result<Optimizer, StoreError> {
        let made = match &self.program {
            Some(program) => Optimizer::own(program, &self.params),
            None => Optimizer::new(&self.kind, &self.params),
        };
        made.map_err(|e| StoreError::BadModel(e.to_string()))
    }
}

impl ModelSpec {
    /// Read a model's JSON.
    ///
    /// # Errors
    /// [`StoreError::BadModel`] if it does not parse, or clips to what is no limit.
    pub fn from_json(json: &str) -> Result<Self, StoreError> {
        let model: Self = serde_json::from_str(json).map_err(|e| {
            StoreError::BadModel(format!("the model description does not parse: {e}"))
        })?;
        model.clip.as_ref().map_or(Ok(()), Clip::check)?;
        Ok(model)
    }

    /// Return how many floats the whole dense vector has.
    ///
    /// # Errors
    /// [`StoreError::BadModel`] if variables overlap or leave gaps.
    pub fn dense_len(&self) -> Result<usize, StoreError> {
        flat_len("dense", &self.dense)
    }

    /// Return how many floats the whole state vector has.
    ///
    /// # Errors
    /// [`StoreError::BadModel`] if variables overlap or leave gaps.
    pub fn state_len(&self) -> Result<usize, StoreError> {
        flat_len("state", &self.state)
    }

    /// The same parameters, all of them trained and all changes added: what a job may change of
    /// the model that it starts from is left out.
    pub(crate) fn untreated(&self) -> Self {
        let mut model = self.clone();
        for table in &mut model.tables {
            (table.trainable, table.given_rows, table.rate) = (true, false, 1.0);
        }
        for variable in model.dense.iter_mut().chain(&mut model.state) {
            (variable.trainable, variable.momentum) = (true, 1.0);
            (variable.rate, variable.may_rest) = (1.0, false);
        }
        model
    }
}

/// The variables lie one after the other, in order; return where the last one ends.
fn flat_len(which: &str, variables: &[VariableSpec]) -> Result<usize, StoreError> {
    let mut end: u64 = 0;
    for v in variables {
        if v.offset != end {
            return Err(StoreError::BadModel(format!(
                "{which} variable '{}' has offset {}, expected {end}: variables lie one after \
                 the other",
                v.name, v.offset
            )));
        }
        let size = v.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
        end = size
            .and_then(|n| end.checked_add(n))
            .filter(|&n| n <= isize::MAX as u64 / 64)
            .ok_or_else(|| {
                StoreError::BadModel(format!(
                    "{which} variable '{}' of shape {:?} is too large",
                    v.name, v.shape
                ))
            })?;
    }
    Ok(end as usize)
}
