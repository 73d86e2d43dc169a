//! Reads what a replica needs of a checkpoint that any number of replicas wrote.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::budget::Budget;
use crate::checkpoint::format::{
    FORMAT_WITH_CHECKSUM, FORMATS, FileEntry, MANIFEST, Manifest, ReplicaEntry, broken,
};
use crate::checkpoint::seal::is_sealed;
use crate::error::StoreError;
use crate::features::life::Times;
use crate::features::saved;
use crate::index::MAX_VERSION;
use crate::placement::Placement;
use crate::progress::Progress;
use crate::route::{NUM_HASH_SLOTS, dense_range, hash_slots_of};
use crate::spec::ModelSpec;
use crate::table::Table;
use crate::tasks::Watermarks;
use crate::vectors::{DenseRule, Vectors};

mod parts;
mod rows;
mod tensors;
mod vectors;

pub use parts::Parts;
pub(crate) use parts::read_parts;
use rows::{RowsFile, read_rows_file};
pub(crate) use tensors::TensorReader;
use vectors::{Gathered, Part, RangesOf, lowest};

/// A new job counts from here on from parameters whose versions come close to the most that there
/// can be.
const RENEWED_VERSION: u64 = 1 << 32;

/// Versions above this are counted anew.
const RENEW_ABOVE: u64 = 1 << 35;

/// Threads that read files of rows.
const MAX_READERS: usize = 8;

/// A replica's part of a checkpoint.
pub(crate) struct Restored {
    pub(crate) model: ModelSpec,
    pub(crate) tables: Vec<Table>,
    pub(crate) vectors: Vectors,
    pub(crate) version: u64,
    pub(crate) watermarks: Watermarks,
    /// Tasks before it are forgotten.
    pub(crate) first_task: u64,
    pub(crate) times: Times,
}

/// The wanted part of a checkpoint.
pub(crate) struct Wanted<'a> {
    pub(crate) replica: u32,
    pub(crate) num_replicas: u32,
    pub(crate) keep_watermarks: bool,
    /// The budget that counts the bytes of rows.
    pub(crate) budget: &'a Arc<Budget>,
    /// Told with each piece that is read.
    pub(crate) progress: Progress<'a>,
}

/// Read the part of a replica.
pub(crate) fn read(dir: &Path, wanted: &Wanted<'_>) -> Result<Restored, StoreError> {
    let mut checkpoint = Checkpoint::open(dir, wanted)?;
    let (vectors, version, mut watermarks) = checkpoint.read_vectors(wanted)?;
    if !wanted.keep_watermarks {
        watermarks.clear();
        checkpoint.renew_versions();
    }
    let (tables, times) = checkpoint.read_tables(wanted)?;
    Ok(Restored {
        model: checkpoint.model().clone(),
        tables,
        vectors,
        version: version - checkpoint.earlier,
        watermarks,
        first_task: if wanted.keep_watermarks {
            checkpoint.first_task()
        } else {
            0
        },
        times,
    })
}

/// Read a manifest, unchecked.
pub(crate) fn read_manifest(dir: &Path) -> Result<Manifest, StoreError> {
    let path = dir.join(MANIFEST);
    let json = std::fs::read(&path).map_err(|e| {
        let problem = format!("cannot be read: {e}; is this the folder of a whole checkpoint?");
        broken(&path, problem)
    })?;
    let has_checksum = is_sealed(&json).map_err(|problem| broken(&path, problem))?;
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
                "has format {found}, expected {first} to {last}; it is foreign or of another version"
            ),
        ));
    }
    if format >= Some(FORMAT_WITH_CHECKSUM) && !has_checksum {
        return Err(broken(
            &path,
            "has no checksum of itself; it was changed or is damaged",
        ));
    }
    serde_json::from_slice(&json)
        .map_err(|e| broken(&path, format!("lacks something or is torn: {e}")))
}

/// The manifest's entries, one for each replica and in order once they are checked; of a part, the
/// one of its replica.
pub(crate) struct Checkpoint {
    pub(crate) dir: PathBuf,
    pub(crate) entries: Vec<ReplicaEntry>,
    /// Versions that are no longer counted: all that are read are less by so many, or 0.
    pub(crate) earlier: u64,
}

impl Checkpoint {
    /// Read a manifest, and check that its entries fit each other and the replica that reads it.
    fn open(dir: &Path, wanted: &Wanted<'_>) -> Result<Self, StoreError> {
        let (replica, num_replicas) = (wanted.replica, wanted.num_replicas);
        Placement::new(replica, num_replicas)?;
        let manifest = read_manifest(dir)?;
        let mut checkpoint = Self {
            dir: dir.to_owned(),
            entries: manifest.replicas,
            earlier: 0,
        };
        // A single replica that has handed over had all rows.
        let is_whole = matches!(&checkpoint.entries[..], [entry] if entry.num_replicas == 1);
        if manifest.is_part && !is_whole {
            checkpoint.check_part(replica, num_replicas)?;
        } else {
            checkpoint.check()?;
        }
        Ok(checkpoint)
    }

    /// Read the rows of this replica, and all that is remembered beside them.
    fn read_tables(&self, wanted: &Wanted<'_>) -> Result<(Vec<Table>, Times), StoreError> {
        let placement = Placement::new(wanted.replica, wanted.num_replicas)?;
        let model = self.model();
        let tables = Table::all_of(model, placement, wanted.budget).map_err(|e| match e {
            // The checkpoint is sound: no older one would be better.
            e @ StoreError::DiskUnusable { .. } => e,
            e => self.broken(e),
        })?;
        let slots = hash_slots_of(wanted.replica, wanted.num_replicas);
        self.read_rows(slots.clone(), &tables, false, wanted.progress)?;
        let bases = self.bases()?;
        for base in &bases {
            base.read_rows(slots.clone(), &tables, true, wanted.progress)?;
        }
        let times = saved::read(self, &bases, &slots, &tables)?;
        Ok((tables, times))
    }

    pub(crate) fn broken(&self, problem: impl std::fmt::Display) -> StoreError {
        broken(&self.dir.join(MANIFEST), problem)
    }

    fn model(&self) -> &ModelSpec {
        &self.entries[0].model
    }

    fn num_replicas(&self) -> u32 {
        self.entries[0].num_replicas
    }

    /// Count versions anew if they come close to the most that there can be. Ages of rows stay, up
    /// to as many as are counted.
    fn renew_versions(&mut self) {
        let version = self.entries.iter().map(|e| e.version).max().unwrap_or(0);
        if version > RENEW_ABOVE {
            let lowest = self.entries.iter().map(|e| e.version).min().unwrap_or(0);
            self.earlier = (version - RENEWED_VERSION).min(lowest);
        }
    }

    /// Check that the entries fit each other and that their files cover everything once.
    fn check(&mut self) -> Result<(), StoreError> {
        self.entries.sort_by_key(|entry| entry.replica);
        let count = self.entries.len();
        if count == 0 || count > NUM_HASH_SLOTS as usize {
            return Err(self.broken(format!(
                "has {count} replicas, expected 1 to {NUM_HASH_SLOTS}"
            )));
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
            self.check_entry(entry)?;
        }
        Ok(())
    }

    /// Check what one replica has handed over, which no other can use.
    fn check_part(&self, replica: u32, num_replicas: u32) -> Result<(), StoreError> {
        match &self.entries[..] {
            [entry] if entry.replica == replica && entry.num_replicas == num_replicas => {
                self.check_entry(entry)
            }
            [entry] => Err(self.broken(format!(
                "is what replica {} of {} has handed over to its successor; replica {replica} of \
                 {num_replicas} needs a whole checkpoint",
                entry.replica, entry.num_replicas
            ))),
            entries => Err(self.broken(format!(
                "is of one replica alone, and has {} entries",
                entries.len()
            ))),
        }
    }

    fn check_entry(&self, entry: &ReplicaEntry) -> Result<(), StoreError> {
        if entry.version >= MAX_VERSION {
            return Err(self.broken(format!(
                "has version {} for replica {}, expected less than {MAX_VERSION}",
                entry.version, entry.replica
            )));
        }
        self.check_files(entry)
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
        let manifest = read_manifest(&dir).map_err(|e| {
            self.broken(format!(
                "needs '{folder}' beside it, which cannot be used: {e}"
            ))
        })?;
        let mut base = Self {
            dir,
            entries: manifest.replicas,
            earlier: self.earlier,
        };
        base.check()?;
        if let Some(said) = base.model().difference(self.model()) {
            return Err(self.broken(format!("has a base of another model: {said}")));
        }
        Ok(base)
    }

    fn check_files(&self, entry: &ReplicaEntry) -> Result<(), StoreError> {
        for file in entry.files.iter().chain(entry.beside.files()) {
            let plain = Path::new(&file.name).file_name();
            if plain != Some(std::ffi::OsStr::new(&file.name)) {
                return Err(self.broken(format!("has a file '{}' outside its folder", file.name)));
            }
        }
        let mut ranges: Vec<_> = entry.files.iter().filter_map(|file| file.slots).collect();
        let vectors = entry.files.len() - ranges.len();
        ranges.sort_unstable();
        let expected = hash_slots_of(entry.replica, entry.num_replicas);
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

    /// The version that a replica goes on from.
    fn version(&self, wanted: &Wanted<'_>) -> u64 {
        let same = wanted.num_replicas == self.num_replicas();
        let versions = self.entries.iter();
        let versions = versions.filter(|entry| !same || entry.replica == wanted.replica);
        versions.map(|entry| entry.version).max().unwrap_or(0)
    }

    /// Return the first task that no replica was told to forget: all had those before.
    fn first_task(&self) -> u64 {
        let firsts = self.entries.iter().map(|entry| entry.first_task);
        firsts.max().unwrap_or(0)
    }

    /// Read this replica's vectors, version and watermarks.
    fn read_vectors(&self, wanted: &Wanted<'_>) -> Result<(Vectors, u64, Watermarks), StoreError> {
        let (replica, num_replicas) = (wanted.replica, wanted.num_replicas);
        let model = self.model();
        let mut gathered = Gathered {
            dense: Part::new(self, model.dense_len(), replica, num_replicas)?,
            state: Part::new(self, model.state_len(), replica, num_replicas)?,
            slots: Vec::new(),
            rests: Vec::new(),
        };
        let held = dense_range(gathered.dense.whole, replica, num_replicas);
        let rule = DenseRule::of(model, held).map_err(|e| self.broken(e))?;
        gathered.slots = vec![0.0; gathered.dense.values.len() * rule.num_slots()];
        let same = num_replicas == self.num_replicas();
        let mut watermarks = Vec::new();
        for entry in &self.entries {
            let part = RangesOf {
                dense: dense_range(gathered.dense.whole, entry.replica, entry.num_replicas),
                state: dense_range(gathered.state.whole, entry.replica, entry.num_replicas),
                num_slots: rule.num_slots(),
            };
            let is_needed = if same {
                entry.replica == replica
            } else {
                wanted.keep_watermarks
                    || gathered.dense.overlaps(&part.dense)
                    || gathered.state.overlaps(&part.state)
            };
            if is_needed {
                watermarks.push(gathered.read(&self.dir, entry, &part)?);
            }
        }
        let version = self.version(wanted);
        let vectors = Vectors::restored(rule, gathered.values());
        Ok((vectors, version, lowest(watermarks)))
    }

    /// Read all rows whose slots are among `slots` into `tables`, some files at a time; of a base,
    /// those that are not there.
    fn read_rows(
        &self,
        slots: Range<u32>,
        tables: &[Table],
        is_base: bool,
        progress: Progress<'_>,
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
                    earlier: self.earlier,
                    is_base,
                    progress,
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
