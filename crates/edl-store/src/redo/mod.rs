//! The redo log: what has changed a store since its checkpoints, so that a successor of the process
//! can do it again.
//!
//! [`record`] has what is noted, [`log`] the files. `store/redo.rs` writes and replays;
//! `docs/designs/ps-recovery.md` says why each minibatch still counts once.

pub(crate) mod log;
pub(crate) mod record;

pub(crate) use self::log::Log;
pub use self::log::RedoLogState;
pub(crate) use self::record::Change;
