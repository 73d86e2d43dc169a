//! Converts the ids of a minibatch to the rows that travel, and back.
//!
//! The ids of all sites of one table are reduced to unique keys, ordered by replica. So each
//! replica's part of the keys and of the rows is one contiguous range. The part is sent from, and
//! received into, the place where it is used.

use std::ops::Range;
use std::sync::Arc;

use edl_store::{Statistics, StoreError, replica_of};
use edl_wire::frame::Element;

use crate::error::PsError;

/// One lookup of a table: which, and the ids as they come.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// Number of the table in the model.
    pub table: u32,
    /// Row ids, duplicates allowed.
    pub ids: &'a [u64],
}

/// The unique ids of some sites, ordered by replica, and where each occurrence is among them.
#[derive(Debug, Default)]
pub struct UniqueKeys {
    keys: Vec<u64>,
    bounds: Vec<usize>,
    /// For each site, the position in `keys` of each of its ids.
    inverses: Vec<Vec<u32>>,
}

impl UniqueKeys {
    /// The keys of some of the sites; they keep their order, which is that of replicas.
    fn part(&self, sites: &[usize]) -> Self {
        let mut places = vec![u32::MAX; self.keys.len()];
        for &site in sites {
            for &position in &self.inverses[site] {
                places[position as usize] = 0;
            }
        }
        let mut part = Self::default();
        part.bounds.push(0);
        for replica in self.bounds.windows(2) {
            let range = replica[0]..replica[1];
            for (place, &key) in places[range.clone()].iter_mut().zip(&self.keys[range]) {
                if *place == 0 {
                    *place = part.keys.len() as u32;
                    part.keys.push(key);
                }
            }
            part.bounds.push(part.keys.len());
        }
        let inverses = sites.iter().map(|&site| &self.inverses[site]);
        let inverses = inverses.map(|inverse| {
            let inverse = inverse.iter();
            inverse.map(|&position| places[position as usize]).collect()
        });
        part.inverses = inverses.collect();
        part
    }
}

/// The unique keys of one table, and where each occurrence of an id finds its row among them.
#[derive(Debug)]
pub struct TablePlan {
    /// Number of the table in the model.
    pub table: u32,
    /// Elements of a row.
    pub dim: usize,
    /// The type in which the table's rows travel.
    pub element: Element,
    /// Whether gradients of its rows are pushed.
    pub trainable: bool,
    /// How the rows are added, if they are statistics; a pushed row then ends with a period.
    pub statistics: Option<Statistics>,
    sites: Vec<usize>,
    /// Shared by the tables that are looked up with the same ids.
    unique: Arc<UniqueKeys>,
}

impl TablePlan {
    /// Unique keys, those of replica 0 first.
    pub fn keys(&self) -> &[u64] {
        &self.unique.keys
    }

    /// The range of `keys` that belongs to a replica.
    pub fn range(&self, replica: usize) -> Range<usize> {
        self.unique.bounds[replica]..self.unique.bounds[replica + 1]
    }

    /// The range of elements of this table's rows that belongs to a replica.
    pub fn row_range(&self, replica: usize) -> Range<usize> {
        let keys = self.range(replica);
        keys.start * self.dim..keys.end * self.dim
    }

    /// How often each of `keys` occurs.
    pub fn occurrences(&self) -> Vec<u32> {
        let mut counts = vec![0; self.keys().len()];
        for inverse in &self.unique.inverses {
            for &position in inverse {
                counts[position as usize] += 1;
            }
        }
        counts
    }

    /// Writes the row of every occurrence, site by site, into `out`.
    pub fn gather(&self, rows: &[f32], out: &mut [Vec<f32>]) {
        for (&site, inverse) in self.sites.iter().zip(&self.unique.inverses) {
            gather(rows, self.dim, inverse, &mut out[site]);
        }
    }

    /// Adds the gradients of every occurrence to those of its key, in the order of occurrence.
    pub fn merge(&self, grads: &[&[f32]], merged: &mut [f32]) {
        for (&site, inverse) in self.sites.iter().zip(&self.unique.inverses) {
            let Some(statistics) = self.statistics else {
                scatter_add(grads[site], self.dim, inverse, merged);
                continue;
            };
            // Occurrences of several minibatches may be of several periods.
            for (added, &position) in grads[site].chunks_exact(self.dim).zip(inverse) {
                let sums = &mut merged[position as usize * self.dim..][..self.dim];
                statistics.add(sums, added);
            }
        }
    }
}

/// The requests of one minibatch to every table.
#[derive(Debug)]
pub struct Plan {
    /// The tables that are looked up, each once.
    pub tables: Vec<TablePlan>,
    /// For each site: elements of its rows.
    pub site_elements: Vec<usize>,
}

impl Plan {
    /// The plan of some of the sites, as they would have without the others.
    pub(crate) fn part(&self, sites: Range<usize>) -> Self {
        let mut tables: Vec<TablePlan> = Vec::new();
        let mut known: Vec<(&Arc<UniqueKeys>, Arc<UniqueKeys>)> = Vec::new();
        for table in &self.tables {
            let places: Vec<usize> = (0..table.sites.len())
                .filter(|&place| sites.contains(&table.sites[place]))
                .collect();
            if places.is_empty() {
                continue;
            }
            let same = known
                .iter()
                .find(|(whole, _)| Arc::ptr_eq(whole, &table.unique));
            let unique = match same {
                Some((_, part)) => part.clone(),
                None => Arc::new(table.unique.part(&places)),
            };
            known.push((&table.unique, unique.clone()));
            tables.push(TablePlan {
                table: table.table,
                dim: table.dim,
                element: table.element,
                trainable: table.trainable,
                statistics: table.statistics,
                sites: (places.iter().map(|&place| table.sites[place] - sites.start)).collect(),
                unique,
            });
        }
        Self {
            tables,
            site_elements: self.site_elements[sites].to_vec(),
        }
    }

    /// The same keys in the order of other replicas, and their rows in that order; nothing is
    /// gathered or merged by it.
    pub(crate) fn ordered_for(
        &self,
        num_replicas: usize,
        rows: &[Vec<f32>],
    ) -> (Self, Vec<Vec<f32>>) {
        let mut planner = Planner::default();
        let tables = self.tables.iter().zip(rows).map(|(table, rows)| {
            let keys = table.keys();
            let mut unique = UniqueKeys {
                keys: keys.to_vec(),
                // Each key is looked up once, so that this says where it goes.
                inverses: vec![(0..keys.len() as u32).collect()],
                ..UniqueKeys::default()
            };
            planner.partition(&mut unique, num_replicas);
            let places = std::mem::take(&mut unique.inverses).swap_remove(0);
            let mut ordered = vec![0.0; rows.len()];
            let rows = rows.chunks_exact(table.dim.max(1));
            for (row, &place) in rows.zip(&places) {
                ordered[place as usize * table.dim..][..table.dim].copy_from_slice(row);
            }
            let plan = TablePlan {
                table: table.table,
                dim: table.dim,
                element: table.element,
                trainable: table.trainable,
                statistics: table.statistics,
                sites: Vec::new(),
                unique: Arc::new(unique),
            };
            (plan, ordered)
        });
        let (tables, rows) = tables.unzip();
        let site_elements = self.site_elements.clone();
        let plan = Self {
            tables,
            site_elements,
        };
        (plan, rows)
    }
}

/// Scratch memory of planning, to be used again.
#[derive(Default)]
pub struct Planner {
    cells: Vec<u32>,
    order: Vec<u32>,
    replicas: Vec<u32>,
}

impl Planner {
    /// Dedups and partitions the ids of every site.
    ///
    /// Args: `dims` by table number.
    pub fn plan(
        &mut self,
        sites: &[Site<'_>],
        dims: &[usize],
        num_replicas: usize,
    ) -> Result<Plan, PsError> {
        let mut tables: Vec<TablePlan> = Vec::new();
        let mut site_elements = Vec::with_capacity(sites.len());
        for (index, site) in sites.iter().enumerate() {
            let unknown = StoreError::UnknownTable {
                table: site.table,
                num_tables: dims.len(),
            };
            let dim = *dims.get(site.table as usize).ok_or(unknown)?;
            site_elements.push(site.ids.len() * dim);
            match tables.iter_mut().find(|plan| plan.table == site.table) {
                Some(plan) => plan.sites.push(index),
                None => tables.push(TablePlan {
                    table: site.table,
                    dim,
                    element: Element::F32,
                    trainable: true,
                    statistics: None,
                    sites: vec![index],
                    unique: Arc::default(),
                }),
            }
        }
        for number in 0..tables.len() {
            let (before, after) = tables.split_at_mut(number);
            let plan = &mut after[0];
            // Often one vector of ids is looked up in several tables: it is deduplicated once.
            let same = before
                .iter()
                .find(|other| same_ids(sites, &other.sites, &plan.sites));
            plan.unique = match same {
                Some(other) => other.unique.clone(),
                None => Arc::new(self.unique(plan, sites, num_replicas)?),
            };
        }
        Ok(Plan {
            tables,
            site_elements,
        })
    }

    fn unique(
        &mut self,
        plan: &TablePlan,
        sites: &[Site<'_>],
        num_replicas: usize,
    ) -> Result<UniqueKeys, PsError> {
        let total: usize = plan.sites.iter().map(|&site| sites[site].ids.len()).sum();
        if total > MAX_IDS {
            return Err(PsError::Invalid(format!(
                "table {}: {total} ids in one minibatch, the limit is {MAX_IDS}; use smaller \
                 minibatches",
                plan.table
            )));
        }
        let mut unique = self.dedup(plan.sites.iter().map(|&site| sites[site].ids), total);
        self.partition(&mut unique, num_replicas);
        Ok(unique)
    }

    /// Open addressing over the positions of the keys; 0 marks an empty cell.
    fn dedup<'a>(&mut self, sites: impl Iterator<Item = &'a [u64]>, total: usize) -> UniqueKeys {
        let num_cells = (2 * total).next_power_of_two().max(2);
        let shift = 64 - num_cells.trailing_zeros();
        let mask = num_cells - 1;
        self.cells.clear();
        self.cells.resize(num_cells, 0);
        let mut unique = UniqueKeys::default();
        for ids in sites {
            let mut inverse = Vec::with_capacity(ids.len());
            for &id in ids {
                let mut cell = (hash(id) >> shift) as usize;
                let position = loop {
                    match self.cells[cell] {
                        0 => {
                            unique.keys.push(id);
                            let position = unique.keys.len() as u32;
                            self.cells[cell] = position;
                            break position;
                        }
                        position if unique.keys[position as usize - 1] == id => break position,
                        _ => cell = (cell + 1) & mask,
                    }
                };
                inverse.push(position - 1);
            }
            unique.inverses.push(inverse);
        }
        unique
    }

    /// A counting sort of the keys by replica, stable, so that the order is that of occurrence.
    fn partition(&mut self, unique: &mut UniqueKeys, num_replicas: usize) {
        if num_replicas == 1 {
            unique.bounds = vec![0, unique.keys.len()];
            return;
        }
        let mut bounds = vec![0usize; num_replicas + 1];
        self.replicas.clear();
        for &key in &unique.keys {
            let replica = replica_of(key, num_replicas as u32);
            self.replicas.push(replica);
            bounds[replica as usize + 1] += 1;
        }
        for replica in 0..num_replicas {
            bounds[replica + 1] += bounds[replica];
        }
        let mut next = bounds.clone();
        let mut keys = vec![0u64; unique.keys.len()];
        self.order.clear();
        for (&key, &replica) in unique.keys.iter().zip(&self.replicas) {
            let place = &mut next[replica as usize];
            keys[*place] = key;
            self.order.push(*place as u32);
            *place += 1;
        }
        for inverse in &mut unique.inverses {
            for position in inverse.iter_mut() {
                *position = self.order[*position as usize];
            }
        }
        unique.keys = keys;
        unique.bounds = bounds;
    }
}

/// Whether two tables are looked up with the very same vectors of ids.
fn same_ids(sites: &[Site<'_>], these: &[usize], those: &[usize]) -> bool {
    these.len() == those.len()
        && these
            .iter()
            .zip(those)
            .all(|(&this, &that)| std::ptr::eq(sites[this].ids, sites[that].ids))
}

/// Positions are kept in 32 bits.
const MAX_IDS: usize = 1 << 30;

/// The finalizer of MurmurHash3: every bit of the id reaches the upper bits, which are used.
fn hash(id: u64) -> u64 {
    let mut h = id;
    h ^= h >> 33;
    h = h.wrapping_mul(0xff51_afd7_ed55_8ccd);
    h ^= h >> 33;
    h = h.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ (h >> 33)
}

/// Runs a function with the row length as a constant, for the lengths that are usual.
macro_rules! by_dim {
    ($dim:expr, $fixed:ident, $any:expr, ($($arg:expr),*)) => {
        match $dim {
            1 => $fixed::<1>($($arg),*),
            2 => $fixed::<2>($($arg),*),
            4 => $fixed::<4>($($arg),*),
            8 => $fixed::<8>($($arg),*),
            16 => $fixed::<16>($($arg),*),
            32 => $fixed::<32>($($arg),*),
            64 => $fixed::<64>($($arg),*),
            _ => $any,
        }
    };
}

fn gather(rows: &[f32], dim: usize, inverse: &[u32], out: &mut [f32]) {
    by_dim!(
        dim,
        gather_fixed,
        gather_any(rows, dim, inverse, out),
        (rows, inverse, out)
    );
}

fn gather_fixed<const D: usize>(rows: &[f32], inverse: &[u32], out: &mut [f32]) {
    let rows = rows.as_chunks::<D>().0;
    for (to, &position) in out.as_chunks_mut::<D>().0.iter_mut().zip(inverse) {
        *to = rows[position as usize];
    }
}

fn gather_any(rows: &[f32], dim: usize, inverse: &[u32], out: &mut [f32]) {
    for (to, &position) in out.chunks_exact_mut(dim).zip(inverse) {
        let start = position as usize * dim;
        to.copy_from_slice(&rows[start..start + dim]);
    }
}

fn scatter_add(grads: &[f32], dim: usize, inverse: &[u32], merged: &mut [f32]) {
    by_dim!(
        dim,
        scatter_add_fixed,
        scatter_add_any(grads, dim, inverse, merged),
        (grads, inverse, merged)
    );
}

fn scatter_add_fixed<const D: usize>(grads: &[f32], inverse: &[u32], merged: &mut [f32]) {
    let merged = merged.as_chunks_mut::<D>().0;
    for (grad, &position) in grads.as_chunks::<D>().0.iter().zip(inverse) {
        let sum = &mut merged[position as usize];
        for lane in 0..D {
            sum[lane] += grad[lane];
        }
    }
}

fn scatter_add_any(grads: &[f32], dim: usize, inverse: &[u32], merged: &mut [f32]) {
    for (grad, &position) in grads.chunks_exact(dim).zip(inverse) {
        let start = position as usize * dim;
        for (sum, value) in merged[start..start + dim].iter_mut().zip(grad) {
            *sum += value;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    fn plan(sites: &[(u32, Vec<u64>)], dims: &[usize], num_replicas: usize) -> Plan {
        let sites: Vec<Site<'_>> = sites
            .iter()
            .map(|(table, ids)| Site { table: *table, ids })
            .collect();
        Planner::default().plan(&sites, dims, num_replicas).unwrap()
    }

    /// A row whose elements tell its key.
    fn row_of(key: u64, dim: usize) -> Vec<f32> {
        (0..dim)
            .map(|lane| (key % 1000) as f32 + lane as f32 / 128.0)
            .collect()
    }

    #[test]
    fn statistics_of_several_periods_are_decayed_before_they_are_added() {
        let mut plan = plan(&[(0, vec![7, 8]), (0, vec![7])], &[2], 1);
        plan.tables[0].statistics = Statistics::new(0.5);
        let mut merged = vec![0.0; 4];
        plan.tables[0].merge(&[&[8.0, 1.0, 1.0, 2.0], &[1.0, 3.0]], &mut merged);
        let of = |key| {
            let place = plan.tables[0]
                .keys()
                .iter()
                .position(|k| *k == key)
                .unwrap();
            &merged[2 * place..][..2]
        };
        assert_eq!((of(7), of(8)), (&[3.0, 3.0][..], &[1.0, 2.0][..]));
    }

    #[test]
    fn a_table_that_the_model_lacks_is_named() {
        let site = Site {
            table: 2,
            ids: &[1],
        };
        let error = Planner::default().plan(&[site], &[4, 4], 1).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("no table 2: the model has 2 tables")
        );
    }

    #[test]
    fn keys_of_one_table_are_shared_by_its_sites() {
        let plan = plan(
            &[(0, vec![5, 6, 5]), (1, vec![5]), (0, vec![6, 7])],
            &[1, 3],
            1,
        );
        assert_eq!(plan.tables.len(), 2);
        assert_eq!(plan.tables[0].keys(), [5, 6, 7]);
        assert_eq!(plan.tables[1].keys(), [5]);
        assert_eq!(plan.site_elements, [3, 3, 2]);
    }

    #[test]
    fn one_vector_of_ids_is_deduplicated_once_for_all_its_tables() {
        let ids = [5, 6, 5];
        let equal = ids;
        let site = |table, ids| Site { table, ids };
        let sites = [site(0, &ids[..]), site(1, &ids[..]), site(2, &equal[..])];
        let plan = Planner::default().plan(&sites, &[1, 3, 2], 2).unwrap();
        assert!(Arc::ptr_eq(&plan.tables[0].unique, &plan.tables[1].unique));
        assert_eq!(plan.tables[0].keys(), plan.tables[2].keys());
        let mut out = vec![vec![0.0; 3], vec![0.0; 9], vec![0.0; 6]];
        for table in &plan.tables {
            let keys = table.keys().iter();
            let rows: Vec<f32> = keys.flat_map(|&key| row_of(key, table.dim)).collect();
            table.gather(&rows, &mut out);
        }
        for (rows, dim) in out.iter().zip([1, 3, 2]) {
            let expected = ids.iter().flat_map(|&id| row_of(id, dim));
            assert_eq!(*rows, expected.collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn gather_gives_every_occurrence_its_row_and_merge_sums_them(
            sites in proptest::collection::vec(
                (0u32..3, proptest::collection::vec(prop_oneof![0u64..20, any::<u64>()], 0..60)),
                0..5,
            ),
            num_replicas in 1usize..5,
            dims in proptest::array::uniform3(1usize..20),
        ) {
            let plan = plan(&sites, &dims, num_replicas);
            let mut out: Vec<Vec<f32>> =
                plan.site_elements.iter().map(|&n| vec![0.0; n]).collect();
            let grads: Vec<Vec<f32>> = plan
                .site_elements
                .iter()
                .map(|&n| (0..n).map(|i| (i % 7) as f32 - 3.0).collect())
                .collect();
            let grads: Vec<&[f32]> = grads.iter().map(Vec::as_slice).collect();
            for table in &plan.tables {
                let unique: HashSet<u64> = table.keys().iter().copied().collect();
                prop_assert_eq!(unique.len(), table.keys().len());
                for replica in 0..num_replicas {
                    for key in &table.keys()[table.range(replica)] {
                        prop_assert_eq!(replica_of(*key, num_replicas as u32), replica as u32);
                    }
                }
                let rows: Vec<f32> =
                    table.keys().iter().flat_map(|&key| row_of(key, table.dim)).collect();
                table.gather(&rows, &mut out);

                let mut merged = vec![0.0; rows.len()];
                table.merge(&grads, &mut merged);
                let mut expected: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
                for ((number, ids), grad) in sites.iter().zip(&grads) {
                    if *number != table.table {
                        continue;
                    }
                    for (id, grad) in ids.iter().zip(grad.chunks_exact(table.dim)) {
                        let sum = expected.entry(*id).or_insert_with(|| vec![0.0; table.dim]);
                        sum.iter_mut().zip(grad).for_each(|(s, g)| *s += g);
                    }
                }
                for (key, sum) in table.keys().iter().zip(merged.chunks_exact(table.dim)) {
                    prop_assert_eq!(sum, expected[key].as_slice());
                }
            }
            for ((table, ids), rows) in sites.iter().zip(&out) {
                let expected: Vec<f32> =
                    ids.iter().flat_map(|&id| row_of(id, dims[*table as usize])).collect();
                prop_assert_eq!(rows, &expected);
            }
        }
    }
}
