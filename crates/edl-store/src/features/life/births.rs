//! The first updates of rows, for tables whose new rows have a time of grace.

use crate::features::{NewRow, RowFeature, Updated};

/// The version of each row's first update, by the row's number; 0 before it has come.
///
/// It is the first update and not the creation: a pull creates rows too, and its time between the
/// updates is chance.
#[derive(Debug, Default)]
pub(crate) struct Births(Vec<u64>);

impl RowFeature for Births {
    fn created(&mut self, row: NewRow<'_>, word: Option<u64>) {
        let row = row.row as usize;
        if row >= self.0.len() {
            self.0.resize(row + 1, 0);
        }
        self.0[row] = word.unwrap_or(0);
    }

    fn updated(&mut self, group: Updated<'_>) {
        for &row in group.rows {
            let birth = &mut self.0[row as usize];
            if *birth == 0 {
                *birth = group.version;
            }
        }
    }

    fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<u64>()
    }

    fn column(&self) -> Option<&'static str> {
        Some("births")
    }

    fn word(&self, row: u32) -> u64 {
        self.0[row as usize]
    }
}
