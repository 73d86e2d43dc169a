//! The first updates of rows, for tables whose new rows have a time of grace.

/// The version of each row's first update, by the row's number; 0 before it has come.
///
/// It is the first update and not the creation: a pull creates rows too, and its time between the
/// updates is chance.
#[derive(Debug, Default)]
pub(crate) struct Births(Vec<u64>);

impl Births {
    /// Note a row with the version of its first update, if it had any.
    pub(super) fn set(&mut self, row: u32, version: u64) {
        let row = row as usize;
        if row >= self.0.len() {
            self.0.resize(row + 1, 0);
        }
        self.0[row] = version;
    }

    /// Note an update of rows.
    pub(super) fn updated(&mut self, rows: &[u32], version: u64) {
        for &row in rows {
            let birth = &mut self.0[row as usize];
            if *birth == 0 {
                *birth = version;
            }
        }
    }

    /// Return the version of a row's first update; 0 if it has not had any.
    pub(super) fn of(&self, row: u32) -> u64 {
        self.0[row as usize]
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<u64>()
    }
}
