//! Reads what a replica needs of a checkpoint that any number of replicas wrote.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytemuck::Pod;
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use crate::budget::Budget;
use crate::checkpoint::format::{
    FORMATS, FileEntry, MANIFEST, Manifest, PREFIX, ReplicaEntry, TableNames, broken,
};
use crate::error::StoreError;
use crate::index::MAX_VERSION;
use crate::life::Times;
use crate::route::{NUM_SLOTS, dense_range, slot_of, slot_range};
use crate::spec::ModelSpec;
use crate::table::{Placement, Table};
use crate::tasks::{Watermark, Watermarks};
use crate::vectors::{Values, Vectors};

mod life;

/// Bytes of rows that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Bytes of a header that is accepted; those written here have about 200 a table.
const MAX_HEADER_BYTES: usize = 64 << 20;

/// Threads that read files of rows.
const MAX_READERS: usize = 8;

/// A replica's part of a checkpoint.
pub(crate) struct Restored {
    pub(crate) model: ModelSpec,
    pub(crate) tables: Vec<Table>,
    pub(crate) vectors: Vectors,
    pub(crate) version: u64,
    pub(crate) watermarks: Watermarks,
    pub(crate) times: Times,
}

/// What is wanted of a checkpoint.
pub(crate) struct Wanted<'a> {
    pub(crate) replica: u32,
    pub(crate) num_replicas: u32,
    pub(crate) keep_watermarks: bool,
    /// Where the bytes of rows are counted.
    pub(crate) budget: &'a Arc<Budget>,
}

/// Read the part of a replica.
pub(crate) fn read(dir: &Path, wanted: &Wanted<'_>) -> Result<Restored, StoreError> {
    let Wanted {
        replica,
        num_replicas,
        keep_watermarks,
        budget,
    } = *wanted;
    let placement = Placement::new(replica, num_replicas)?;
    let entries = read_manifest(dir)?;
    let dir = dir.to_owned();
    let mut checkpoint = Checkpoint { dir, entries };
    checkpoint.check()?;
    let (vectors, version, mut watermarks) =
        checkpoint.read_vectors(replica, num_replicas, keep_watermarks)?;
    if !keep_watermarks {
        watermarks.clear();
    }
    let model = checkpoint.model().clone();
    let tables = model
        .tables
        .iter()
        .map(|spec| Table::new(spec, model.seed, placement, budget.clone()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| checkpoint.broken(e))?;
    let slots = slot_range(replica, num_replicas);
    checkpoint.read_rows(slots.clone(), &tables, false)?;
    for base in checkpoint.bases()? {
        base.read_rows(slots.clone(), &tables, true)?;
    }
    let times = life::read(&checkpoint, &slots, &tables)?;
    Ok(Restored {
        model,
        tables,
        vectors,
        version,
        watermarks,
        times,
    })
}

/// Read the entries of a manifest, unchecked.
pub(crate) fn read_manifest(dir: &Path) -> Result<Vec<ReplicaEntry>, StoreError> {
    let path = dir.join(MANIFEST);
    let json = std::fs::read(&path).map_err(|e| {
        let problem = format!("cannot be read: {e}; is this the folder of a whole checkpoint?");
        broken(&path, problem)
    })?;
    // The format first: another one may look different.
    let value: serde_json::Value = serde_json::from_slice(&json)
        .map_err(|e| broken(&path, format!("is not JSON ({e}); it is torn or foreign")))?;
    let format = value.get("format").and_then(serde_json::Value::as_u64);
    if !format.is_some_and(|format| FORMATS.contains(&format)) {
        let found = format.map_or("none".to_owned(), |f| f.to_string());
        let (first, last) = (FORMATS.start(), FORMATS.end());
        return Err(broken(
            &path,
            format!(
                "has format {found}, expected {first} or {last}; it is foreign or of another version"
            ),
        ));
    }
    let manifest: Manifest = serde_json::from_slice(&json)
        .map_err(|e| broken(&path, format!("lacks something or is torn: {e}")))?;
    Ok(manifest.replicas)
}

/// The manifest's entries, one for each replica and in order once they are checked.
struct Checkpoint {
    dir: PathBuf,
    entries: Vec<ReplicaEntry>,
}

impl Checkpoint {
    fn broken(&self, problem: impl std::fmt::Display) -> StoreError {
        broken(&self.dir.join(MANIFEST), problem)
    }

    fn model(&self) -> &ModelSpec {
        &self.entries[0].model
    }

    fn num_replicas(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Check that the entries fit each other and that their files cover everything once.
    fn check(&mut self) -> Result<(), StoreError> {
        self.entries.sort_by_key(|entry| entry.replica);
        let count = self.entries.len();
        if count == 0 || count > NUM_SLOTS as usize {
            return Err(self.broken(format!("has {count} replicas, expected 1 to {NUM_SLOTS}")));
        }
        for (number, entry) in self.entries.iter().enumerate() {
            if entry.replica as usize != number || entry.num_replicas as usize != count {
                return Err(self.broken(format!(
                    "has replica {} of {} as number {number} of {count}; entries are missing or \
                     of different checkpoints",
                    entry.replica, entry.num_replicas
                )));
            }
            if let Some(said) = entry.model.difference(self.model()) {
                return Err(self.broken(format!(
                    "has different models: {said} by replica 0, compared with replica {number}"
                )));
            }
            if entry.version >= MAX_VERSION {
                return Err(self.broken(format!(
                    "has version {} for replica {number}, expected less than {MAX_VERSION}",
                    entry.version
                )));
            }
            self.check_files(entry)?;
        }
        Ok(())
    }

    /// Return the checkpoints that hold what this one lacks, each with the entries of the replicas
    /// that have it as their base.
    fn bases(&self) -> Result<Vec<Self>, StoreError> {
        let mut bases: Vec<(&str, Self)> = Vec::new();
        for entry in &self.entries {
            let Some(base) = &entry.base else { continue };
            let known = bases.iter().position(|(folder, _)| *folder == base.folder);
            let at = match known {
                Some(at) => at,
                None => {
                    bases.push((&base.folder, self.base(&base.folder)?));
                    bases.len() - 1
                }
            };
            let there = &bases[at].1;
            let found = there.entries.get(entry.replica as usize);
            let is_it = |e: &&ReplicaEntry| e.base.is_none() && e.files == base.files;
            if found.filter(is_it).is_none() {
                return Err(self.broken(format!(
                    "has '{}' as the base of replica {}, and that checkpoint was replaced since; \
                     use another one",
                    base.folder, entry.replica
                )));
            }
        }
        // Replicas that wrote all their rows have nothing in a base.
        for (folder, base) in &mut bases {
            let needs = |number: u32| {
                let entry = self.entries.get(number as usize);
                let own = entry.and_then(|entry| entry.base.as_ref());
                own.is_some_and(|own| own.folder == *folder)
            };
            base.entries.retain(|entry| needs(entry.replica));
        }
        Ok(bases.into_iter().map(|(_, base)| base).collect())
    }

    fn base(&self, folder: &str) -> Result<Self, StoreError> {
        if Path::new(folder).file_name() != Some(std::ffi::OsStr::new(folder)) {
            return Err(self.broken(format!("has a base '{folder}' that is not beside it")));
        }
        let dir = self.dir.parent().unwrap_or(Path::new("")).join(folder);
        let entries = read_manifest(&dir).map_err(|e| {
            self.broken(format!(
                "needs '{folder}' beside it, which cannot be used: {e}"
            ))
        })?;
        let mut base = Self { dir, entries };
        base.check()?;
        if let Some(said) = base.model().difference(self.model()) {
            return Err(self.broken(format!("has a base of another model: {said}")));
        }
        Ok(base)
    }

    fn check_files(&self, entry: &ReplicaEntry) -> Result<(), StoreError> {
        for file in entry.files.iter().chain(&entry.life) {
            let plain = Path::new(&file.name).file_name();
            if plain != Some(std::ffi::OsStr::new(&file.name)) {
                return Err(self.broken(format!("has a file '{}' outside its folder", file.name)));
            }
        }
        let mut ranges: Vec<_> = entry.files.iter().filter_map(|file| file.slots).collect();
        let vectors = entry.files.len() - ranges.len();
        ranges.sort_unstable();
        let expected = slot_range(entry.replica, entry.num_replicas);
        let mut next = expected.start;
        for [first, end] in ranges {
            if first != next || end < first {
                break;
            }
            next = end;
        }
        if vectors != 1 || next != expected.end {
            return Err(self.broken(format!(
                "names {vectors} files of vectors for replica {} and rows up to slot {next} of \
                 {}..{}; entries are missing",
                entry.replica, expected.start, expected.end
            )));
        }
        Ok(())
    }

    /// Read this replica's vectors, version and watermarks.
    fn read_vectors(
        &self,
        replica: u32,
        num_replicas: u32,
        keep_watermarks: bool,
    ) -> Result<(Vectors, u64, Watermarks), StoreError> {
        let model = self.model();
        let optimizer = model.optimizer.parse().map_err(|e| self.broken(e))?;
        let mut gathered = Gathered {
            dense: Part::new(self, model.dense_len(), replica, num_replicas)?,
            state: Part::new(self, model.state_len(), replica, num_replicas)?,
            slots: Vec::new(),
        };
        gathered.slots = vec![0.0; gathered.dense.values.len() * optimizer.num_slots()];
        let same = num_replicas == self.num_replicas();
        let mut watermarks = Vec::new();
        for entry in &self.entries {
            let part = RangesOf {
                dense: dense_range(gathered.dense.whole, entry.replica, entry.num_replicas),
                state: dense_range(gathered.state.whole, entry.replica, entry.num_replicas),
                num_slots: optimizer.num_slots(),
            };
            let wanted = if same {
                entry.replica == replica
            } else {
                keep_watermarks
                    || gathered.dense.overlaps(&part.dense)
                    || gathered.state.overlaps(&part.state)
            };
            if wanted {
                watermarks.push(gathered.read(&self.dir, entry, &part)?);
            }
        }
        let version = if same {
            self.entries[replica as usize].version
        } else {
            self.entries.iter().map(|e| e.version).max().unwrap_or(0)
        };
        let vectors = Vectors::restored(optimizer, gathered.values());
        Ok((vectors, version, lowest(watermarks)))
    }

    /// Read all rows whose slots are among `slots` into `tables`, some files at a time; of a base,
    /// those that are not there.
    fn read_rows(
        &self,
        slots: Range<u32>,
        tables: &[Table],
        is_base: bool,
    ) -> Result<(), StoreError> {
        let overlaps = |[first, end]: [u32; 2]| first < slots.end && slots.start < end;
        let files: Vec<(&FileEntry, [u32; 2], u64)> = self
            .entries
            .iter()
            .flat_map(|entry| entry.files.iter().map(|file| (file, entry.version)))
            .filter_map(|(file, version)| Some((file, file.slots?, version)))
            .filter(|&(_, slots, _)| overlaps(slots))
            .collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(&(file, slots, version)) =
                files.get(next.fetch_add(1, Ordering::Relaxed))
            {
                let part = RowsFile {
                    file,
                    slots,
                    version,
                    is_base,
                };
                if let Err(error) = read_rows_file(&self.dir, &part, tables) {
                    // The others stop at their next file.
                    next.store(files.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
            Ok(())
        };
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        std::thread::scope(|scope| {
            let readers = cores.min(MAX_READERS).min(files.len());
            let readers: Vec<_> = (0..readers).map(|_| scope.spawn(work)).collect();
            let results = readers.into_iter().map(|reader| match reader.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            // All are joined before the first error is returned.
            results.fold(Ok(()), Result::and)
        })
    }
}

/// A range of a flat vector, gathered from the ranges of other replicas.
struct Part {
    whole: usize,
    range: Range<usize>,
    values: Vec<f32>,
}

impl Part {
    fn new(
        checkpoint: &Checkpoint,
        whole: Result<usize, StoreError>,
        replica: u32,
        num_replicas: u32,
    ) -> Result<Self, StoreError> {
        let whole = whole.map_err(|e| checkpoint.broken(e))?;
        let range = dense_range(whole, replica, num_replicas);
        // The model comes from a file: reserve no more than its vectors' files turn out to have.
        let on_disk: u64 = checkpoint
            .entries
            .iter()
            .flat_map(|entry| &entry.files)
            .filter(|file| file.slots.is_none())
            .map(|file| std::fs::metadata(checkpoint.dir.join(&file.name)).map_or(0, |m| m.len()))
            .sum();
        if range.len() as u64 * 4 > on_disk {
            return Err(checkpoint.broken(format!(
                "describes a vector of {whole} floats, but the files of vectors have {on_disk} \
                 bytes; one is missing, torn or of another checkpoint"
            )));
        }
        Ok(Self {
            whole,
            values: vec![0.0; range.len()],
            range,
        })
    }

    fn overlaps(&self, other: &Range<usize>) -> bool {
        self.range.start < other.end && other.start < self.range.end
    }

    /// Return the overlap with `other`: where it lies here, and where it lies there.
    fn overlap(&self, other: &Range<usize>) -> (Range<usize>, Range<usize>) {
        let start = self.range.start.max(other.start);
        let end = self.range.end.min(other.end).max(start);
        let within = |range: &Range<usize>| start - range.start..end - range.start;
        if self.overlaps(other) {
            (within(&self.range), within(other))
        } else {
            (0..0, 0..0)
        }
    }
}

/// What one replica's file of vectors holds.
struct RangesOf {
    dense: Range<usize>,
    state: Range<usize>,
    num_slots: usize,
}

struct Gathered {
    dense: Part,
    slots: Vec<f32>,
    state: Part,
}

impl Gathered {
    fn values(self) -> Values {
        Values {
            dense: Arc::new(self.dense.values),
            slots: Arc::new(self.slots),
            state: Arc::new(self.state.values),
        }
    }

    /// Copy what overlaps from a replica's file; return its watermarks.
    fn read(
        &mut self,
        dir: &Path,
        entry: &ReplicaEntry,
        of: &RangesOf,
    ) -> Result<HashMap<u64, Watermark>, StoreError> {
        let files = entry.files.iter().find(|file| file.slots.is_none());
        let file = files.ok_or_else(|| broken(&dir.join(MANIFEST), "names no file of vectors"))?;
        let mut reader = TensorReader::open(dir, file)?;
        let tasks = reader.rows_of("tasks", 4)?;
        let tasks = reader.read::<u64>("tasks", Dtype::U64, &[tasks, 4])?;
        let dense = reader.read::<f32>("dense", Dtype::F32, &[of.dense.len()])?;
        // Without weights there are no slots either, whatever the optimizer.
        let num_slots = if dense.is_empty() { 0 } else { of.num_slots };
        let shape = [num_slots, of.dense.len()];
        let slots = reader.read::<f32>("dense.slots", Dtype::F32, &shape)?;
        let state = reader.read::<f32>("state", Dtype::F32, &[of.state.len()])?;
        reader.finish()?;

        let (here, there) = self.dense.overlap(&of.dense);
        self.dense.values[here.clone()].copy_from_slice(&dense[there.clone()]);
        let own = self.slots.chunks_exact_mut(self.dense.values.len().max(1));
        for (own, slot) in own.zip(slots.chunks_exact(of.dense.len().max(1))) {
            own[here.clone()].copy_from_slice(&slot[there.clone()]);
        }
        let (here, there) = self.state.overlap(&of.state);
        self.state.values[here].copy_from_slice(&state[there]);
        watermarks(dir, file, &tasks)
    }
}

fn watermarks(
    dir: &Path,
    file: &FileEntry,
    tasks: &[u64],
) -> Result<HashMap<u64, Watermark>, StoreError> {
    let mut watermarks = HashMap::new();
    for task in tasks.chunks_exact(4) {
        let small = |value: u64| {
            u32::try_from(value).map_err(|_| {
                let problem = format!("has {value} as a task's lease or index; it is corrupt");
                broken(&dir.join(&file.name), problem)
            })
        };
        let watermark = Watermark {
            lease: small(task[1])?,
            next_index: small(task[2])?,
            num_records: task[3],
        };
        watermarks.insert(task[0], watermark);
    }
    Ok(watermarks)
}

/// Return for each task the lowest watermark of all replicas, under the newest lease: what one
/// of them lacks must come again.
fn lowest(replicas: Vec<HashMap<u64, Watermark>>) -> Watermarks {
    let mut tasks: HashMap<u64, u32> = HashMap::new();
    for (&task, watermark) in replicas.iter().flatten() {
        let lease = tasks.entry(task).or_default();
        *lease = watermark.lease.max(*lease);
    }
    let lowest = |task: u64| {
        let of =
            |replica: &HashMap<u64, Watermark>| replica.get(&task).copied().unwrap_or_default();
        replicas.iter().map(of).min_by_key(|w| w.next_index)
    };
    tasks
        .into_iter()
        .map(|(task, lease)| {
            let watermark = lowest(task).unwrap_or_default();
            (task, Watermark { lease, ..watermark })
        })
        .collect()
}

/// A file of rows.
struct RowsFile<'a> {
    file: &'a FileEntry,
    slots: [u32; 2],
    /// No row is of a later one.
    version: u64,
    is_base: bool,
}

/// Read a file of rows into the tables; rows of other replicas are left out.
fn read_rows_file(dir: &Path, part: &RowsFile<'_>, tables: &[Table]) -> Result<(), StoreError> {
    let RowsFile {
        file,
        slots,
        version,
        is_base,
    } = *part;
    let mut reader = TensorReader::open(dir, file)?;
    let mut found = Vec::new();
    for number in 0..tables.len() {
        let names = TableNames::new(number);
        let count = reader.len_of(&names.keys)?;
        let keys = reader.read::<u64>(&names.keys, Dtype::U64, &[count])?;
        let versions = reader.read::<u64>(&names.versions, Dtype::U64, &[count])?;
        if let Some(late) = versions.iter().find(|&&v| v > version) {
            return Err(reader.broken(format!(
                "has a row of version {late}, later than the checkpoint's {version}; it is corrupt"
            )));
        }
        let inside = |&&key: &&u64| (slots[0]..slots[1]).contains(&u32::from(slot_of(key)));
        if keys.iter().filter(inside).count() != keys.len() {
            return Err(reader.broken(format!(
                "has keys outside the slots {}..{} that the manifest gives it; it is corrupt",
                slots[0], slots[1]
            )));
        }
        found.push((keys, versions));
    }
    for (number, (table, (keys, versions))) in tables.iter().zip(found).enumerate() {
        let name = TableNames::new(number).rows;
        let width = table.width();
        table.reserve(&keys)?;
        reader.begin(&name, Dtype::F32, &[keys.len(), width])?;
        let rows = (CHUNK_BYTES / 4 / width).max(1);
        for (keys, versions) in keys.chunks(rows).zip(versions.chunks(rows)) {
            let mut values = vec![0.0_f32; keys.len() * width];
            reader.fill(&mut values)?;
            if let Some(key) = table.restore(keys, versions, &values, is_base) {
                return Err(reader.broken(format!(
                    "has key {key} of table '{}' that was read before; it is corrupt",
                    table.name()
                )));
            }
        }
    }
    reader.finish()
}

/// Reads the tensors of a file in the order in which they lie, and checks length and checksum.
/// What was read is to be trusted once `finish` has succeeded.
struct TensorReader {
    path: PathBuf,
    file: BufReader<File>,
    metadata: Metadata,
    /// Bytes of tensors read so far.
    at: usize,
    crc32c: u32,
    expected_crc32c: u32,
}

impl TensorReader {
    fn open(dir: &Path, entry: &FileEntry) -> Result<Self, StoreError> {
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

    fn broken(&self, problem: impl std::fmt::Display) -> StoreError {
        broken(&self.path, problem)
    }

    fn shape_of(&self, name: &str) -> Result<&[usize], StoreError> {
        match self.metadata.info(name) {
            Some(info) => Ok(&info.shape),
            None => Err(self.broken(format!("lacks tensor '{name}'; it is of another format"))),
        }
    }

    /// Return the length of a vector.
    fn len_of(&self, name: &str) -> Result<usize, StoreError> {
        match self.shape_of(name)? {
            [len] => Ok(*len),
            shape => Err(self.broken(format!(
                "has tensor '{name}' of shape {shape:?}, expected one dimension"
            ))),
        }
    }

    /// Return the rows of a matrix of `width`.
    fn rows_of(&self, name: &str, width: usize) -> Result<usize, StoreError> {
        match self.shape_of(name)? {
            [rows, found] if *found == width => Ok(*rows),
            shape => Err(self.broken(format!(
                "has tensor '{name}' of shape {shape:?}, expected rows of {width}"
            ))),
        }
    }

    /// Check that a tensor comes next, and that it is as expected.
    fn begin(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<(), StoreError> {
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
    fn read<T: Pod>(
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
    fn fill<T: Pod>(&mut self, values: &mut [T]) -> Result<(), StoreError> {
        let bytes = bytemuck::cast_slice_mut(values);
        let read = self.file.read_exact(bytes);
        read.map_err(|e| self.broken(format!("cannot be read: {e}")))?;
        self.at += bytes.len();
        self.crc32c = crc32c::crc32c_append(self.crc32c, bytes);
        Ok(())
    }

    fn finish(self) -> Result<(), StoreError> {
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
