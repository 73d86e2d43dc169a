//! Optimizer kernels on slices, dense and sparse.
