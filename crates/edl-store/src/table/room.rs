//! Chooses the rows that leave memory: a clock's hand finds unused rows, over all tables of a
//! store.
//!
//! The hand goes round stripe by stripe, and looks at a part of each in turn. So a table that is
//! used less gives up more of its memory, whichever table filled it first.

use super::Table;
use crate::cold::Hand;

/// The factor above the limit up to which a thread goes on while another thread makes room.
const SLACK: f64 = 1.03;

/// Rounds over all stripes, each of which looks at a small part, after which nothing more goes.
const MAX_ROUNDS: usize = 8 * 256;

/// Bring rows to disk until those in memory take no more than they may.
///
/// The caller holds no lock of a stripe. A disk that takes no more, or has lost rows, has told so
/// to the store.
pub(crate) fn make_room(tables: &[Table]) {
    let Some(budget) = tables.first().map(Table::budget) else {
        return;
    };
    let (Some(disk), Some(limit)) = (budget.disk(), budget.limit()) else {
        return;
    };
    if budget.used() <= limit || disk.full().is_some() {
        return;
    }
    let waits = budget.used() as f64 > limit as f64 * SLACK;
    let Some(mut hand) = disk.hand(waits) else {
        return;
    };
    let num_stripes: usize = tables.iter().map(Table::num_cold_stripes).sum();
    // Stripes in a row with few rows in memory.
    let mut num_bare = 0;
    for _ in 0..MAX_ROUNDS * num_stripes {
        if budget.used() <= limit {
            budget.set_cramped(false);
            return;
        }
        let Hand {
            table,
            stripe,
            buffer,
        } = &mut *hand;
        match tables[*table % tables.len()].evict(*stripe, buffer) {
            Ok(Some(_)) => num_bare = 0,
            Ok(None) => num_bare += 1,
            Err(_) => return,
        }
        advance(&mut hand, tables);
        if num_bare > num_stripes {
            break;
        }
    }
    budget.set_cramped(true);
}

/// Go on to the next stripe that may bring rows to disk.
fn advance(hand: &mut Hand, tables: &[Table]) {
    hand.stripe += 1;
    while hand.stripe >= tables[hand.table % tables.len()].num_cold_stripes() {
        (hand.table, hand.stripe) = ((hand.table + 1) % tables.len(), 0);
    }
}
