//! The lengths and types of a model that calls are checked against.

use edl_store::{ModelSpec, StateRules, Statistics, StoreError};
use edl_wire::frame::Element;

use crate::clip::Clipping;
use crate::dedup::Plan;
use crate::error::PsError;
use crate::tables::element_of;

/// The lengths that calls are checked against, once the model is known.
pub(super) struct Shape {
    /// Names of the tables.
    pub(super) names: Vec<String>,
    pub(super) dims: Vec<usize>,
    /// For each table, the type in which its rows travel.
    pub(super) elements: Vec<Element>,
    /// For each table, whether it is trained.
    pub(super) trainable: Vec<bool>,
    /// For each table of statistics, how its rows are added.
    pub(super) statistics: Vec<Option<Statistics>>,
    pub(super) dense_len: usize,
    pub(super) state_len: usize,
    pub(super) clipping: Option<Clipping>,
    pub(super) state_rules: StateRules,
}

impl Shape {
    pub(super) fn of(model: &ModelSpec) -> Result<Self, StoreError> {
        Ok(Self {
            names: model.tables.iter().map(|t| t.name.clone()).collect(),
            dims: model.tables.iter().map(|t| t.dim as usize).collect(),
            elements: (model.tables.iter().map(|t| element_of(t.wire_dtype))).collect(),
            trainable: model.tables.iter().map(|table| table.trainable).collect(),
            statistics: (model.tables.iter())
                .map(|table| table.statistics.map(|s| s.parse()).transpose())
                .collect::<Result<_, _>>()
                .map_err(StoreError::BadModel)?,
            dense_len: model.dense_len()?,
            state_len: model.state_len()?,
            clipping: Clipping::of(model),
            state_rules: StateRules::of(model)?,
        })
    }

    /// Says of each table of a plan how its rows travel, and what is pushed of it.
    pub(super) fn treat(&self, plan: &mut Plan) {
        for table in &mut plan.tables {
            table.element = self.elements[table.table as usize];
            table.trainable = self.trainable[table.table as usize];
            table.statistics = self.statistics[table.table as usize];
        }
    }
}

pub(super) fn check_len(what: &str, found: usize, expected: usize) -> Result<(), PsError> {
    if found == expected {
        return Ok(());
    }
    Err(PsError::Invalid(format!(
        "{what} has {found} elements, expected {expected}"
    )))
}
