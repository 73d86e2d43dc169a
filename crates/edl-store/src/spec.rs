//! The parts of a model, as every worker declares it.

use std::collections::BTreeMap;

use edl_optim::{Constraint, Optimizer, ProgramSpec, Statistics};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::life::{AdmissionSpec, ExpirySpec};

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

    fn described(&self) -> String {
        let Some(program) = &self.program else {
            return described(&self.kind, &self.params);
        };
        let slots: Vec<_> = program.slots.iter().map(|(name, _)| &**name).collect();
        let operations: Vec<_> = program.nodes.iter().map(|node| &*node.op).collect();
        format!(
            "of its own (slots {}; {})",
            slots.join(", "),
            operations.join(" ")
        )
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

    /// Say how `self` differs from what was declared before, or `None` if they are equal.
    pub(crate) fn difference(&self, declared: &Self) -> Option<String> {
        if self == declared {
            return None;
        }
        let said = table_difference(&self.tables, &declared.tables)
            .or_else(|| variable_difference("dense", &self.dense, &declared.dense))
            .or_else(|| variable_difference("state", &self.state, &declared.state))
            .or_else(|| optimizer_difference("the model", &self.optimizer, &declared.optimizer))
            .or_else(|| clip_difference(self.clip, declared.clip))
            .unwrap_or_else(|| {
                format!(
                    "the seed is {} here, {} was declared",
                    self.seed, declared.seed
                )
            });
        Some(said)
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

fn table_difference(here: &[TableSpec], declared: &[TableSpec]) -> Option<String> {
    if here.len() != declared.len() {
        return Some(format!(
            "the model has {} tables here, {} were declared",
            here.len(),
            declared.len()
        ));
    }
    here.iter()
        .zip(declared)
        .enumerate()
        .find_map(|(i, (a, b))| {
            let table = format!("table '{}'", a.name);
            if a.name != b.name {
                return Some(format!(
                    "table {i} is '{}' here, '{}' was declared",
                    a.name, b.name
                ));
            }
            if a.dim != b.dim {
                return Some(format!(
                    "{table} has dim {} here, {} was declared",
                    a.dim, b.dim
                ));
            }
            if a.initializer != b.initializer {
                return Some(format!(
                    "{table} has initializer {} here, {} was declared",
                    described(&a.initializer.kind, &a.initializer.params),
                    described(&b.initializer.kind, &b.initializer.params)
                ));
            }
            if a.input_dim != b.input_dim {
                let words = |d: Option<u64>| d.map_or("no limit".to_owned(), |n| n.to_string());
                return Some(format!(
                    "{table} has input_dim {} here, {} was declared",
                    words(a.input_dim),
                    words(b.input_dim)
                ));
            }
            if a.wire_dtype != b.wire_dtype {
                return Some(format!(
                    "{table} has wire_dtype {:?} here, {:?} was declared",
                    a.wire_dtype, b.wire_dtype
                ));
            }
            if a.admission != b.admission || a.expiry != b.expiry {
                return Some(format!(
                    "{table} has {} here, {} was declared",
                    life_cycle(a),
                    life_cycle(b)
                ));
            }
            if a.statistics != b.statistics {
                let words = |s: Option<StatisticsSpec>| {
                    s.map_or("no statistics".to_owned(), |s| {
                        format!("statistics that decay by {} in {} steps", s.decay, s.steps)
                    })
                };
                return Some(format!(
                    "{table} has {} here, {} was declared",
                    words(a.statistics),
                    words(b.statistics)
                ));
            }
            if a.constraint != b.constraint {
                return Some(format!(
                    "{table} has {} here, {} was declared",
                    constrained(a.constraint.as_ref()),
                    constrained(b.constraint.as_ref())
                ));
            }
            if a.keep_names != b.keep_names {
                return Some(format!(
                    "{table} has keep_names={} here, {} was declared",
                    a.keep_names, b.keep_names
                ));
            }
            if a.trainable != b.trainable {
                return Some(format!(
                    "{table} has trainable={} here, {} was declared",
                    a.trainable, b.trainable
                ));
            }
            if a.rate != b.rate {
                return Some(format!(
                    "{table} has {} times the learning rate here, {} was declared",
                    a.rate, b.rate
                ));
            }
            optimizer_difference(&table, &a.optimizer, &b.optimizer)
        })
}

fn variable_difference(
    which: &str,
    here: &[VariableSpec],
    declared: &[VariableSpec],
) -> Option<String> {
    if here.len() != declared.len() {
        return Some(format!(
            "the model has {} {which} variables here, {} were declared",
            here.len(),
            declared.len()
        ));
    }
    let (a, b) = here.iter().zip(declared).find(|(a, b)| a != b)?;
    let same_place = (&a.name, &a.shape, a.offset) == (&b.name, &b.shape, b.offset);
    Some(if same_place {
        format!(
            "{which} variable '{}' has {} here, {} was declared",
            a.name,
            treated(a),
            treated(b)
        )
    } else if a.name == b.name {
        format!(
            "{which} variable '{}' has shape {:?} at {} here, {:?} at {} was declared",
            a.name, a.shape, a.offset, b.shape, b.offset
        )
    } else {
        format!(
            "{which} variable '{}' here was declared as '{}'",
            a.name, b.name
        )
    })
}

fn optimizer_difference(
    whose: &str,
    here: &OptimizerSpec,
    declared: &OptimizerSpec,
) -> Option<String> {
    (here != declared).then(|| {
        format!(
            "{whose} has optimizer {} here, {} was declared",
            here.described(),
            declared.described()
        )
    })
}

fn clip_difference(here: Option<Clip>, declared: Option<Clip>) -> Option<String> {
    let words = |clip: Option<Clip>| match clip {
        None => "not clipped".to_owned(),
        Some(clip) => format!("clipped by {clip:?}"),
    };
    (here != declared).then(|| {
        format!(
            "gradients are {} here, {} was declared",
            words(here),
            words(declared)
        )
    })
}

fn constrained(constraint: Option<&ConstraintSpec>) -> String {
    constraint.map_or("no constraint".to_owned(), |c| {
        format!("constraint {}", described(&c.kind, &c.params))
    })
}

fn treated(variable: &VariableSpec) -> String {
    let decay = if variable.decays { "the" } else { "no" };
    let mut said = format!(
        "trainable={}, momentum={}, {decay} weight decay and {}",
        variable.trainable,
        variable.momentum,
        constrained(variable.constraint.as_ref())
    );
    if let Some(own) = &variable.optimizer {
        said += &format!(", optimizer {}", own.described());
    }
    if variable.rate != 1.0 {
        said += &format!(", {} times the learning rate", variable.rate);
    }
    said
}

fn life_cycle(table: &TableSpec) -> String {
    let admission = table.admission.as_ref();
    let admission = admission.map_or("none".to_owned(), |a| described(&a.kind, &a.params));
    let expiry = match &table.expiry {
        None => "none".to_owned(),
        Some(e) => format!(
            "after {:?} steps, {:?} days, below a norm of {:?} after {:?} steps, by {:?}",
            e.steps, e.days, e.min_norm, e.grace_steps, e.statistic
        ),
    };
    format!("admission {admission} and expiry {expiry}")
}

fn described(kind: &str, params: &BTreeMap<String, f64>) -> String {
    let params: Vec<_> = params.iter().map(|(k, v)| format!("{k}={v}")).collect();
    format!("{kind}({})", params.join(", "))
}
