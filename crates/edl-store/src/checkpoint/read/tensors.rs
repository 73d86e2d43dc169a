//! Tensors of a file, read in their order and checked.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use bytemuck::Pod;
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use crate::checkpoint::format::{FileEntry, PREFIX, broken};
use crate::error::StoreError;

/// Bytes of a header that is accepted; those written here have about 200 a table.
const MAX_HEADER_BYTES: usize = 64 << 20;

/// Reads the tensors of a file in the order of the file, and checks length and checksum. The values
/// are valid only after `finish` has succeeded.
pub(crate) struct TensorReader {
    path: PathBuf,
    file: BufReader<File>,
    metadata: Metadata,
    /// Bytes of tensors read so far.
    at: usize,
    crc32c: u32,
    expected_crc32c: u32,
}

impl TensorReader {
    pub(crate) fn open(dir: &Path, entry: &FileEntry) -> Result<Self, StoreError> {
        let path = dir.join(&entry.name);
        let file = File::open(&path).map_err(|e| {
            broken(
                &path,
                format!("cannot be opened: {e}; use an earlier checkpoint"),
            )
        })?;
        let bytes = file.metadata().map_err(|e| broken(&path, e))?.len();
        if bytes != entry.bytes {
            return Err(broken(
                &path,
                format!(
                    "has {bytes} bytes, expected {}: it is torn; use an earlier checkpoint",
                    entry.bytes
                ),
            ));
        }
        let mut file = BufReader::with_capacity(64 << 10, file);
        let header = read_header(&mut file, bytes).map_err(|problem| broken(&path, problem))?;
        let metadata: Metadata = serde_json::from_slice(&header[PREFIX..])
            .map_err(|e| broken(&path, format!("has a bad safetensors header: {e}")))?;
        if (header.len() as u64).checked_add(metadata.data_len() as u64) != Some(bytes) {
            return Err(broken(
                &path,
                format!(
                    "has {bytes} bytes, expected {} after its header of {}: it is torn or foreign",
                    metadata.data_len(),
                    header.len()
                ),
            ));
        }
        Ok(Self {
            path,
            file,
            metadata,
            at: 0,
            crc32c: crc32c::crc32c(&header),
            expected_crc32c: entry.crc32c,
        })
    }

    pub(crate) fn broken(&self, problem: impl std::fmt::Display) -> StoreError {
        broken(&self.path, problem)
    }

    fn shape_of(&self, name: &str) -> Result<&[usize], StoreError> {
        match self.metadata.info(name) {
            Some(info) => Ok(&info.shape),
            None => Err(self.broken(format!("lacks tensor '{name}'; it is of another format"))),
        }
    }

    /// Return the length of a vector.
    pub(crate) fn len_of(&self, name: &str) -> Result<usize, StoreError> {
        match self.shape_of(name)? {
            [len] => Ok(*len),
            shape => Err(self.broken(format!(
                "has tensor '{name}' of shape {shape:?}, expected one dimension"
            ))),
        }
    }

    /// Return the rows of a matrix of `width`.
    pub(crate) fn rows_of(&self, name: &str, width: usize) -> Result<usize, StoreError> {
        match self.shape_of(name)? {
            [rows, found] if *found == width => Ok(*rows),
            shape => Err(self.broken(format!(
                "has tensor '{name}' of shape {shape:?}, expected rows of {width}"
            ))),
        }
    }

    /// Check that a tensor comes next, and that it is as expected.
    pub(crate) fn begin(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<(), StoreError> {
        let found = self.shape_of(name)?;
        if found != shape {
            return Err(self.broken(format!(
                "has tensor '{name}' of shape {found:?}, expected {shape:?}"
            )));
        }
        let info = self.metadata.info(name);
        let Some(info) = info.filter(|i| i.dtype == dtype && i.data_offsets.0 == self.at) else {
            return Err(self.broken(format!(
                "has tensor '{name}' of another type or in another place; it is of another format"
            )));
        };
        let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let bytes = count.and_then(|n| n.checked_mul(dtype.bitsize() / 8));
        if bytes != info.data_offsets.1.checked_sub(self.at) {
            return Err(self.broken(format!("has tensor '{name}' of a length unlike its shape")));
        }
        Ok(())
    }

    /// Read a whole tensor; its length was checked against that of the file.
    pub(crate) fn read<T: Pod>(
        &mut self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<Vec<T>, StoreError> {
        self.begin(name, dtype, shape)?;
        let mut values = vec![T::zeroed(); shape.iter().product()];
        self.fill(&mut values)?;
        Ok(values)
    }

    /// Read what comes next.
    pub(crate) fn fill<T: Pod>(&mut self, values: &mut [T]) -> Result<(), StoreError> {
        let bytes = bytemuck::cast_slice_mut(values);
        let read = self.file.read_exact(bytes);
        read.map_err(|e| self.broken(format!("cannot be read: {e}")))?;
        self.at += bytes.len();
        self.crc32c = crc32c::crc32c_append(self.crc32c, bytes);
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<(), StoreError> {
        if self.at != self.metadata.data_len() {
            return Err(self.broken("has more tensors than expected; it is of another format"));
        }
        if self.crc32c != self.expected_crc32c {
            return Err(self.broken(format!(
                "has checksum {:08x}, expected {:08x}: it is corrupt; use an earlier checkpoint",
                self.crc32c, self.expected_crc32c
            )));
        }
        Ok(())
    }
}

/// Return the header with the length before it.
fn read_header(file: &mut impl Read, bytes: u64) -> Result<Vec<u8>, String> {
    let mut prefix = [0; PREFIX];
    file.read_exact(&mut prefix)
        .map_err(|e| format!("cannot be read: {e}"))?;
    let len = u64::from_le_bytes(prefix);
    if len > MAX_HEADER_BYTES as u64 || len > bytes {
        return Err(format!(
            "announces a header of {len} bytes; it is no safetensors file of a checkpoint"
        ));
    }
    let mut header = vec![0; PREFIX + len as usize];
    header[..PREFIX].copy_from_slice(&prefix);
    file.read_exact(&mut header[PREFIX..])
        .map_err(|e| format!("cannot be read: {e}"))?;
    Ok(header)
}
