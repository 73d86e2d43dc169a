//! Applies a whole gradient of several minibatches: what a worker of an all-reduce job does.

use edl_store::{RoundGradient, RoundMember, Store};

use crate::clip::Clipping;
use crate::error::PsError;

/// Clip a gradient of several minibatches as the model says, and apply it; return the version.
///
/// All minibatches have to be next in their task. The model has no tables, and nobody else updates
/// the store meanwhile.
///
/// # Errors
/// A minibatch that is not the next one, or a gradient that does not fit the model; nothing has
/// changed then.
pub fn apply_whole(
    store: &Store,
    mut members: Vec<RoundMember>,
    learning_rate: f32,
    dense: &[f32],
    state: &[f32],
) -> Result<u64, PsError> {
    let model = store
        .model()
        .ok_or_else(|| PsError::Invalid("the model must be declared before updates".to_owned()))?;
    let len = model.dense_len()?;
    if dense.len() != len {
        return Err(PsError::Invalid(format!(
            "dense_grad has {} elements, expected {len} as the model's dense vector",
            dense.len()
        )));
    }
    let version = store.version();
    for member in &mut members {
        if store.judge(member.task, member.lease, member.index)? {
            return Err(PsError::Invalid(format!(
                "minibatch {} of task {} has been applied before",
                member.index, member.task
            )));
        }
        member.pulled_version = version;
    }
    let mut dense = dense.to_vec();
    if let Some(clipping) = Clipping::of(&model) {
        clipping.apply(&mut [], &mut dense);
    }
    let (_, applied) = store.apply_round(&members, learning_rate, |_| RoundGradient {
        tables: Vec::new(),
        dense,
        state: state.to_vec(),
        weight: 1.0,
    })?;
    Ok(applied.version)
}
