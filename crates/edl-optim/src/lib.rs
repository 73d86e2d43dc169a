//! Optimizer kernels on slices, dense and sparse.
//!
//! An [`Optimizer`] is a rule with its settings; [`Optimizer::step`] fixes the learning rate and
//! the step number and yields a [`Step`], which updates weights and slots element by element.
//! Weights may decay before, and be held to a [`Constraint`] after. The
//! formulas, the order of their operations and the defaults are those of Keras 3. A dense vector
//! and a row of an embedding table take the same path: weights, then `num_slots` vectors of the
//! same length, then the gradient.
//!
//! The rules are written once, as plain functions of one element ([`rules`]). The kernel runs
//! them over blocks of eight elements; compiled for AVX2 a block is one register, compiled for
//! the baseline it is the scalar twin. Rows of a table take blocks of sixteen where the processor
//! has AVX-512. No operation is fused or reordered, so both give the same
//! bits. A rule of the user's own is a [`ProgramSpec`], run over blocks of elements.

mod adam;
mod around;
mod group;
mod keras_optimizer;
mod kernel;
mod optimizer;
mod own_rule;
mod prefetch;
mod program;
mod rules;
mod settings;
mod statistics;
mod step;
mod torch;
mod torch_optimizer;

pub use around::{Constraint, Decay};
pub use kernel::Row;
pub use optimizer::{OptimError, Optimizer};
pub use prefetch::{AHEAD, prefetch, prefetch_slice, work_ahead};
pub use program::{BadProgram, NodeSpec, ProgramSpec};
pub use settings::BadSetting;
pub use statistics::Statistics;
pub use step::Step;
