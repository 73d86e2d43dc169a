//! The model's settings of tables, in the form for client and server.

use edl_store::{ModelSpec, StoreError, WireDtype};
use edl_wire::frame::Element;

use crate::error::PsError;

/// Rows of one scanned chunk, unless rows are so wide that fewer fill a sensible frame.
const SCAN_ROWS: usize = 65_536;
const SCAN_BYTES: usize = 4 << 20;

/// Returns the type in which the rows of a table travel.
pub(crate) fn element_of(dtype: WireDtype) -> Element {
    match dtype {
        WireDtype::Float32 => Element::F32,
        WireDtype::Float16 => Element::F16,
        WireDtype::Bfloat16 => Element::Bf16,
    }
}

/// The width of a table's rows.
pub(crate) fn dim_of(model: &ModelSpec, table: u32) -> Result<usize, PsError> {
    let num_tables = model.tables.len();
    let spec = model.tables.get(table as usize);
    let spec = spec.ok_or(StoreError::UnknownTable { table, num_tables })?;
    Ok(spec.dim as usize)
}

/// Rows of one chunk of a scan.
pub(crate) fn scan_rows(dim: usize) -> usize {
    (SCAN_BYTES / (4 * dim.max(1))).clamp(1, SCAN_ROWS)
}
