//! NumPy arrays as Rust takes them, and back, without copies.

use edl_ps::{Site, StepGradients};
use numpy::ndarray::{ArrayD, IxDyn};
use numpy::{
    Element, IntoPyArray, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn,
    PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// The ids of each site, as Python has them.
pub(crate) struct Ids<'py> {
    pub(crate) tables: Vec<u32>,
    pub(crate) arrays: Vec<PyReadonlyArrayDyn<'py, i64>>,
}

impl<'py> Ids<'py> {
    pub(crate) fn of(sites: &[(u32, Bound<'py, PyAny>)]) -> PyResult<Self> {
        let arrays = sites.iter().enumerate();
        let arrays =
            arrays.map(|(site, (_, ids))| array::<i64>(ids, &format!("ids of site {site}")));
        Ok(Self {
            tables: sites.iter().map(|(table, _)| *table).collect(),
            arrays: arrays.collect::<PyResult<_>>()?,
        })
    }

    pub(crate) fn sites(&self) -> PyResult<Vec<Site<'_>>> {
        let sites = self.tables.iter().zip(&self.arrays);
        let sites = sites.map(|(&table, ids)| {
            // Ids are the same 64 bits on both sides; only Python calls them signed.
            let ids = bytemuck::cast_slice(ids.as_slice()?);
            Ok(Site { table, ids })
        });
        sites.collect()
    }
}

/// The gradients of a step, as Python has them.
pub(crate) struct Grads<'py> {
    rows: Vec<PyReadonlyArrayDyn<'py, f32>>,
    dense: PyReadonlyArrayDyn<'py, f32>,
    state: PyReadonlyArrayDyn<'py, f32>,
}

impl<'py> Grads<'py> {
    /// Checks them against the rows that were pulled.
    pub(crate) fn of(
        py: Python<'py>,
        pulled: &[Py<PyArrayDyn<f32>>],
        row_grads: &[Bound<'py, PyAny>],
        dense: &Bound<'py, PyAny>,
        state: &Bound<'py, PyAny>,
    ) -> PyResult<Self> {
        let rows = row_grads.iter().enumerate();
        let rows = rows
            .map(|(site, grads)| array::<f32>(grads, &format!("row_grads[{site}]")))
            .collect::<PyResult<Vec<_>>>()?;
        for (site, (grads, rows)) in rows.iter().zip(pulled).enumerate() {
            let expected = rows.bind(py).shape();
            if grads.shape() != expected {
                return Err(PyValueError::new_err(format!(
                    "row_grads[{site}] has shape {:?}, expected {expected:?}, that of the rows \
                     pulled",
                    grads.shape()
                )));
            }
        }
        Ok(Self {
            rows,
            dense: array(dense, "dense_grad")?,
            state: array(state, "state_delta")?,
        })
    }

    pub(crate) fn rows(&self) -> PyResult<Vec<&[f32]>> {
        let rows = self.rows.iter().map(|grads| Ok(grads.as_slice()?));
        rows.collect()
    }

    pub(crate) fn step<'a>(&'a self, rows: &'a [&'a [f32]]) -> PyResult<StepGradients<'a>> {
        Ok(StepGradients {
            rows,
            dense: self.dense.as_slice()?,
            state: self.state.as_slice()?,
        })
    }
}

/// Checks that an argument is a C-contiguous array of the right type, without copying it.
pub(crate) fn array<'py, T: Element>(
    argument: &Bound<'py, PyAny>,
    name: &str,
) -> PyResult<PyReadonlyArrayDyn<'py, T>> {
    typed(argument, name)?
        .try_readonly()
        .map_err(|error| PyValueError::new_err(format!("{name}: {error}")))
}

/// The same of an array to write to: it shares no memory with another argument.
pub(crate) fn array_mut<'py, T: Element>(
    argument: &Bound<'py, PyAny>,
    name: &str,
) -> PyResult<PyReadwriteArrayDyn<'py, T>> {
    typed(argument, name)?.try_readwrite().map_err(|error| {
        PyValueError::new_err(format!(
            "{name}: {error}; expected an array that may be written, and is no other argument's"
        ))
    })
}

fn typed<'a, 'py, T: Element>(
    argument: &'a Bound<'py, PyAny>,
    name: &str,
) -> PyResult<&'a Bound<'py, PyArrayDyn<T>>> {
    let py = argument.py();
    let untyped = argument.cast::<PyUntypedArray>().map_err(|_| {
        PyTypeError::new_err(format!(
            "{name}: expected a NumPy array, found {}",
            argument.get_type()
        ))
    })?;
    let typed = argument.cast::<PyArrayDyn<T>>().map_err(|_| {
        PyTypeError::new_err(format!(
            "{name}: expected an array of {}, found {}",
            T::get_dtype(py),
            untyped.dtype()
        ))
    })?;
    if !typed.is_c_contiguous() {
        return Err(PyValueError::new_err(format!(
            "{name}: the array is not C-contiguous; pass numpy.ascontiguousarray(...)"
        )));
    }
    Ok(typed)
}

/// Makes a NumPy array of a vector without copying it.
pub(crate) fn shaped(
    py: Python<'_>,
    elements: Vec<f32>,
    shape: &[usize],
) -> PyResult<Py<PyArrayDyn<f32>>> {
    let array = ArrayD::from_shape_vec(IxDyn(shape), elements)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(array.into_pyarray(py).unbind())
}
