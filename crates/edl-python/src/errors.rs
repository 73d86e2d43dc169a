//! Maps each crate's errors to the exceptions of `elasticdl.errors`.
